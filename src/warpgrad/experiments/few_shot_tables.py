"""The declared tables of the few-shot experiment, with the published figures.

On mini- and tieredImageNet they are those of the paper's table; on CIFAR-FS, which the paper does not have, MAML's is
the published one of a four-block network with 32 filters, trained on tens of times as many episodes as `small` has.
"""

from __future__ import annotations

from typing import Any

from warpgrad.experiments.base import Row, Table

NAME = "few-shot"
FEWER_FILTERS = ("reptile", "meta-sgd", "t-nets", "mt-nets", "maml")
"""Baselines that overfit with 128 filters (App. H); at the paper's sizes they get 32."""

SMALL_STEPS = {1: 2000, 5: 800}
"""Meta-steps at the small preset: the episodes of 5-shot training are three times as large."""

_Published = tuple[tuple[str, str, float | None, float | None], ...]
"""Label, method, and the published accuracies for 1 shot and for 5."""

_CIFAR: _Published = (
    ("Warp-MAML", "warp-maml", None, None),
    ("MAML", "maml", 58.9, 71.5),
    ("Meta-SGD", "meta-sgd", None, None),
    ("T-Nets", "t-nets", None, None),
    ("CAVIA", "cavia", None, None),
)
_MINI: _Published = (
    ("Warp-MAML", "warp-maml", 52.3, 68.4),
    ("MAML", "maml", 48.7, 63.2),
    ("Reptile", "reptile", 50.0, 66.0),
    ("Meta-SGD", "meta-sgd", 50.5, 64.0),
    ("(M)T-Net", "mt-nets", 51.7, None),
    ("CAVIA", "cavia", 51.8, 65.9),
)
_TIERED: _Published = (("Warp-MAML", "warp-maml", 57.2, 74.1), ("MAML", "maml", 51.7, 70.3))


def _row(label: str, method: str, paper: float | None, data: str, shots: int) -> Row:
    at: dict[str, dict[str, Any]] = {"small": {"meta_steps": SMALL_STEPS[shots]}}
    if method in FEWER_FILTERS:
        at["paper"] = {"filters": 32}
    small = 2 if method in ("warp-maml", "maml") else 1
    return Row(label, {"method": method, "data": data, "shots": shots}, paper, {"small": small}, at)


def _tables(short: str, data: str, published: _Published, preset: str) -> list[Table]:
    return [
        Table(
            f"few-shot-{short}-{shots}shot",
            f"Accuracy on test episodes, {data}, 5-way {shots}-shot",
            NAME,
            tuple(_row(label, method, papers[place], data, shots) for label, method, *papers in published),
            seeds=1,
            preset=preset,
        )
        for place, shots in enumerate((1, 5))
    ]


_PROBED: tuple[tuple[str, str, dict[str, float]], ...] = (
    *((f"MAML, α = {alpha:g}", "maml", {"inner_lr": alpha}) for alpha in (0.02, 0.05, 0.15)),
    ("MAML, Adam at 0.003", "maml", {"theta0_lr": 0.003}),
    *((f"Warp-MAML, α = {alpha:g}", "warp-maml", {"inner_lr": alpha}) for alpha in (0.05, 0.15, 0.4)),
    *((f"T-Nets, α = {alpha:g}", "t-nets", {"inner_lr": alpha}) for alpha in (0.05, 0.15)),
    *((f"CAVIA, α = {alpha:g}", "cavia", {"inner_lr": alpha}) for alpha in (0.3, 5.0, 20.0)),
)
_SHORT = {"meta_steps": 500, "validate_every": 500, "split": "validation", "test_episodes": 300}
PROBES = Table(
    "few-shot-steps",
    "Step sizes: accuracy on validation episodes after 500 meta-steps, CIFAR-FS, 5-way 1-shot",
    NAME,
    tuple(Row(label, {"method": method, **_SHORT, **chosen}) for label, method, chosen in _PROBED),
    seeds=1,
    preset="small",
)
"""What the step sizes of the preset `small` were chosen by."""

TABLES: tuple[Table, ...] = (
    *_tables("cifar", "cifar-fs", _CIFAR, "small"),
    *_tables("mini", "mini-imagenet", _MINI, "paper"),
    *_tables("tiered", "tiered-imagenet", _TIERED, "paper"),
    PROBES,
)

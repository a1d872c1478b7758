"""The declared tables of the alphabets experiment, with the paper's figures.

The paper's captions say error; the numbers are accuracies. Its default setting appears as 83.6, 83.8, 84.3 and 84.4.
"""

from __future__ import annotations

from typing import Any

from warpgrad.experiments.base import Row, Table

NAME = "omniglot"
SEEDS = 10
ABLATION_SEEDS = 4


def _row(label: str, method: str, paper: float | None, *, small: int = 1, **settings: Any) -> Row:
    """`small`: seeds at the preset of that name."""
    return Row(label, {"method": method, **settings}, paper, {"small": small})


def _warp(label: str, paper: float | None, *, small: int = 1, **settings: Any) -> Row:
    return _row(label, "warp-leap", paper, small=small, **settings)


MAIN = Table(
    "omniglot",
    "Accuracy after 100 steps on held-out alphabets, 25 meta-training tasks",
    NAME,
    (
        _warp("Warp-Leap", 83.8, small=4),
        _row("Leap", "leap", 74.8, small=4),
        _row("Reptile", "reptile", 70.8, small=2),
        _row("Finetuning", "finetuning", 76.4, small=4),
        _row("MAML", "maml", 56.7, small=2),
        _row("FOMAML", "fomaml", None, small=2),
        _row("KFAC", "kfac", 56.0, small=2),
        _row("SGD", "sgd", 51.0, small=4),
    ),
    seeds=SEEDS,
)

TASKS = Table(
    "omniglot-tasks",
    "Accuracy against the number of meta-training tasks",
    NAME,
    tuple(
        _row(
            f"{label}, {count} {'task' if count == 1 else 'tasks'}",
            method,
            paper,
            small=4 if count == 25 else 2,
            tasks=count,
        )
        for label, method, papers in (
            ("Warp-Leap", "warp-leap", (49.5, 75.0, 83.8)),
            ("Leap", "leap", (37.6, 59.5, 74.8)),
        )
        for count, paper in zip((1, 5, 25), papers, strict=True)
    ),
    seeds=SEEDS,
)

ABLATION = Table(
    "omniglot-ablation",
    "Ablation of warp-layers, objective and meta-training, 25 tasks",
    NAME,
    (
        _warp("3×3 conv, offline, exact (default)", 84.4, small=4),
        _row("no warp (Leap)", "leap", 74.8, small=4),
        _warp("approximate objective", 83.1, small=2, objective="approximate"),
        _warp("online", 76.3, small=2, algorithm="online", meta_lr=0.001),
        _warp("learned α", 83.1, learned_alpha=True),
        _warp("scaling", 77.5, warp="scaling"),
        _warp("1×1 conv", 79.4, warp="conv1x1"),
        _warp("3×3 conv + ReLU", 83.4, warp="conv3x3+relu"),
        _warp("3×3 conv + BN", 84.7, warp="conv3x3+bn"),
        _warp("3×3 conv + BN + ReLU", 85.0, warp="conv3x3+bn+relu"),
        _warp("3×3 conv + BN + Res + ReLU", 86.3, warp="conv3x3+bn+res+relu"),
        _warp("2-layer + BN + Res", 88.0, small=2, warp="two-layer+bn+res"),
        _warp("2-layer + BN + Res + FiLM", 88.1, warp="two-layer+bn+res+film"),
        _warp("held-out drawings for the meta-loss", None, meta_drawings=5),
        _warp("3×3 conv, begun as the identity (ours)", None, warp_init="identity"),
    ),
    seeds=ABLATION_SEEDS,
)

ETA = Table(
    "omniglot-eta",
    "Points per update of the warp in offline meta-training",
    NAME,
    (
        _warp("η = 1", 84.4, small=4),
        _warp("η = 20", None, samples=20),
        _warp("η = all", None, samples=None),
    ),
    seeds=ABLATION_SEEDS,
)

_NATURAL = {"theta0": "random", "batch_size": 200, "inner_lr": 1.0, "scratch_batch": 1, "scratch_lr": 1.0}
_NATURAL_SMALL = {"batch_size": 32}
"""200/128 of the preset's batch, as in the paper."""


def _natural(label: str, method: str, paper: float, *, small: int, **settings: Any) -> Row:
    return Row(label, {"method": method, **_NATURAL, **settings}, paper, {"small": small}, {"small": _NATURAL_SMALL})


NATURAL = Table(
    "omniglot-natural",
    "From one random initialisation: warps against a natural gradient",
    NAME,
    (
        _natural("SGD", "sgd", 40.1, small=4),
        _natural("KFAC", "kfac", 58.2, small=4),
        _natural("linear warp", "warp-leap", 68.0, small=1),
        _natural("non-linear warp", "warp-leap", 81.3, small=1, warp="two-layer+bn+res+relu"),
    ),
    seeds=ABLATION_SEEDS,
)

KFAC = Table(
    "omniglot-kfac",
    "KFAC's damping and bound on the step, on validation alphabets",
    NAME,
    tuple(
        _row(
            f"damping {damping:g}, {f'bound {clip:g}' if clip else 'no bound'}",
            "kfac",
            None,
            small=2,
            kfac_damping=damping,
            kfac_clip=clip,
            split="validation",
        )
        for damping in (0.01, 0.03, 0.1, 0.3)
        for clip in (0.03, 0.1, 0.3, None)
    ),
    seeds=2,
    preset="small",
)
"""The paper names no settings of KFAC: these chose ours."""

_AUTHORS = {"filters": 64, "meta_steps": 40}

AUTHORS = Table(
    "omniglot-authors",
    "At the size of the published program: 64 filters, batch 20, 5 tasks × 100 steps, 40 meta-steps",
    NAME,
    (_warp("Warp-Leap", None, **_AUTHORS), _row("Leap", "leap", None, **_AUTHORS)),
    seeds=1,
    preset="small",
)

DEMO = Table(
    "omniglot-demo",
    "Accuracy after 100 steps on held-out drawn alphabets",
    NAME,
    (_warp("Warp-Leap", None), _row("Leap", "leap", None), _row("SGD", "sgd", None)),
    seeds=2,
    preset="demo",
)

TABLES = (MAIN, TASKS, ABLATION, ETA, NATURAL, KFAC, AUTHORS, DEMO)

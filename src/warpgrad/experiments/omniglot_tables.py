"""The declared tables of the alphabets experiment, with the paper's figures.

The paper's captions say error; the numbers are accuracies. Its default setting appears as 83.6, 83.8, 84.3 and 84.4.
"""

from __future__ import annotations

from typing import Any

from warpgrad.experiments.base import Row, Table

NAME = "omniglot"
SEEDS = 10
ABLATION_SEEDS = 4


def _warp(label: str, paper: float | None, **settings: Any) -> Row:
    return Row(label, {"method": "warp-leap", **settings}, paper)


MAIN = Table(
    "omniglot",
    "Accuracy after 100 steps on held-out alphabets, 25 meta-training tasks",
    NAME,
    (
        _warp("Warp-Leap", 83.8),
        Row("Leap", {"method": "leap"}, 74.8),
        Row("Reptile", {"method": "reptile"}, 70.8),
        Row("Finetuning", {"method": "finetuning"}, 76.4),
        Row("MAML", {"method": "maml"}, 56.7),
        Row("FOMAML", {"method": "fomaml"}),
        Row("KFAC", {"method": "kfac"}, 56.0),
        Row("SGD", {"method": "sgd"}, 51.0),
    ),
    seeds=SEEDS,
)

TASKS = Table(
    "omniglot-tasks",
    "Accuracy against the number of meta-training tasks",
    NAME,
    tuple(
        Row(f"{label}, {count} {'task' if count == 1 else 'tasks'}", {"method": method, "tasks": count}, paper)
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
        _warp("3×3 conv, offline, exact (default)", 84.4),
        Row("no warp (Leap)", {"method": "leap"}, 74.8),
        _warp("approximate objective", 83.1, objective="approximate"),
        _warp("online", 76.3, algorithm="online", meta_lr=0.001),
        _warp("learned α", 83.1, learned_alpha=True),
        _warp("scaling", 77.5, warp="scaling"),
        _warp("1×1 conv", 79.4, warp="conv1x1"),
        _warp("3×3 conv + ReLU", 83.4, warp="conv3x3+relu"),
        _warp("3×3 conv + BN", 84.7, warp="conv3x3+bn"),
        _warp("3×3 conv + BN + ReLU", 85.0, warp="conv3x3+bn+relu"),
        _warp("3×3 conv + BN + Res + ReLU", 86.3, warp="conv3x3+bn+res+relu"),
        _warp("2-layer + BN + Res", 88.0, warp="two-layer+bn+res"),
        _warp("2-layer + BN + Res + FiLM", 88.1, warp="two-layer+bn+res+film"),
        _warp("held-out drawings for the meta-loss", None, meta_drawings=5),
    ),
    seeds=ABLATION_SEEDS,
)

ETA = Table(
    "omniglot-eta",
    "Points per update of the warp in offline meta-training",
    NAME,
    (
        _warp("η = 1", 84.4),
        _warp("η = 20", None, samples=20),
        _warp("η = all", None, samples=None),
    ),
    seeds=ABLATION_SEEDS,
)

_NATURAL = {"theta0": "random", "batch_size": 200, "inner_lr": 1.0, "scratch_batch": 1, "scratch_lr": 1.0}

NATURAL = Table(
    "omniglot-natural",
    "From one random initialisation: warps against a natural gradient",
    NAME,
    (
        Row("SGD", {"method": "sgd", **_NATURAL}, 40.1),
        Row("KFAC", {"method": "kfac", **_NATURAL}, 58.2),
        _warp("linear warp", 68.0, **_NATURAL),
        _warp("non-linear warp", 81.3, warp="two-layer+bn+res+relu", **_NATURAL),
    ),
    seeds=ABLATION_SEEDS,
)

TABLES = (MAIN, TASKS, ABLATION, ETA, NATURAL)

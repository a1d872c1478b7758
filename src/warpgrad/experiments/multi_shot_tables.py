"""The declared tables of the multi-shot experiment, with the paper's figures, which are for tieredImageNet."""

from __future__ import annotations

from typing import Any

from warpgrad.experiments.base import Row, Table

NAME = "multi-shot"
SEEDS = 4
"""The paper does not say how many runs its figures are means of."""

_PUBLISHED = (
    ("Warp-Leap", "warp-leap", 80.4),
    ("Leap", "leap", 73.9),
    ("Reptile", "reptile", 76.5),
    ("SGD", "sgd", 58.1),
)
"""Label, method, and the paper's accuracy after 100 steps."""

STEP_SIZES = (0.002, 0.006, 0.02, 0.06, 0.2)
_ON_VALIDATION: dict[str, Any] = {"split": "validation", "test_tasks": 10, "test_curve_every": 0}
_SHORT: dict[str, Any] = {"meta_steps": 100, "validate_every": 100}
"""A quarter of the meta-steps of `small`: the search is to cost less than the runs it is for."""
PROBES = Table(
    "multi-shot-steps",
    "Step sizes: AUC on validation tasks, where there is meta-training after 100 meta-steps",
    NAME,
    tuple(
        Row(
            f"{label}, α = {alpha:g}",
            {"method": method, "inner_lr": alpha, **_ON_VALIDATION, **({} if method == "sgd" else _SHORT)},
        )
        for label, method, _ in _PUBLISHED
        for alpha in STEP_SIZES
    ),
    seeds=1,
    preset="small",
)
"""What the step sizes of the preset `small` are chosen by: as many trials for each method."""

TABLES = (
    Table(
        "multi-shot",
        "Accuracy on held-out tasks of large multi-shot image classification",
        NAME,
        tuple(Row(label, {"method": method}, paper) for label, method, paper in _PUBLISHED),
        seeds=SEEDS,
    ),
    PROBES,
)

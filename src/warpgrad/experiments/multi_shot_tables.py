"""The declared table of the multi-shot experiment, with the paper's figures, which are for tieredImageNet."""

from __future__ import annotations

from warpgrad.experiments.base import Row, Table

NAME = "multi-shot"
SEEDS = 4
"""The paper does not say how many runs its figures are means of."""
SMALL_SEEDS = 2

TABLES = (
    Table(
        "multi-shot",
        "Accuracy on held-out tasks of large multi-shot image classification",
        NAME,
        tuple(
            Row(label, {"method": method}, paper, {"small": SMALL_SEEDS})
            for label, method, paper in (
                ("Warp-Leap", "warp-leap", 80.4),
                ("Leap", "leap", 73.9),
                ("Reptile", "reptile", 76.5),
                ("SGD", "sgd", 58.1),
            )
        ),
        seeds=SEEDS,
    ),
    Table(
        "multi-shot-steps",
        "Step sizes of training from scratch: accuracy on validation tasks",
        NAME,
        tuple(
            Row(f"SGD, α = {alpha:g}", {"method": "sgd", "inner_lr": alpha, "split": "validation", "test_tasks": 10})
            for alpha in (0.02, 0.05, 0.15)
        ),
        seeds=1,
        preset="small",
    ),
)

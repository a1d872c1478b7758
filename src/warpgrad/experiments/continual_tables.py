"""The declared tables of the continual experiment; the paper gives orders of magnitude, see `continual_results`.

Rows name all that makes them what they are called, so that no preset can turn a row as printed into one of ours, or the
other way round; the preset says how long they are meta-trained.
"""

from __future__ import annotations

from warpgrad.experiments.base import Row, Table
from warpgrad.experiments.continual_setup import OURS, PRINTED

PLAIN = (Row("no warp", {"method": "no-warp"}), Row("no warp, lr 0.01", {"method": "no-warp", "lr": 0.01}))
EWC = Row("EWC", {"method": "ewc", "lr": 0.003, "strength": 1e4})
"""Rows that meta-learn nothing."""

CURRENT = {"method": "warp-current", "credit": "full"}
"""Without earlier sub-tasks in the meta-loss all credits are one."""
SHORT = {"ours": {"meta_steps": 1000}}
"""The ablation's length."""

TABLES = (
    Table(
        "continual",
        "Loss of new and old sub-tasks on held-out tasks, Eq. 11 as printed",
        "continual",
        (
            Row("WarpGrad", PRINTED),
            *PLAIN,
            Row("warp for the current sub-task", {**PRINTED, **CURRENT}),
            EWC,
        ),
        seeds=4,
    ),
    Table(
        "continual-ours",
        "Loss of new and old sub-tasks on held-out tasks, ours beside Eq. 11 as printed",
        "continual",
        (
            Row("WarpGrad, Eq. 11 as printed", PRINTED),
            Row("WarpGrad, ours", OURS),
            Row("warp for the current sub-task, ours", {**OURS, **CURRENT}),
        ),
        seeds=4,
        preset="ours",
    ),
    Table(
        "continual-credit",
        "What earlier sub-tasks judge: ours, by credit, beside Eq. 11 as printed",
        "continual",
        (
            Row("WarpGrad, Eq. 11 as printed", PRINTED, at=SHORT),
            *(
                Row(f"WarpGrad, ours, credit {credit}", {**OURS, "credit": credit}, at=SHORT)
                for credit in ("full", "step", "movement", "direction")
            ),
        ),
        seeds=4,
        preset="ours",
    ),
    Table(
        "continual-baselines",
        "Step size and strength of the methods without a warp, on validation tasks",
        "continual",
        (
            *(
                Row(f"no warp, lr {lr:g}", {"method": "no-warp", "lr": lr, "split": "validation"})
                for lr in (0.0003, 0.001, 0.003, 0.01)
            ),
            *(
                Row(
                    f"EWC, lr {lr:g}, λ {strength:g}",
                    {"method": "ewc", "lr": lr, "strength": strength, "split": "validation"},
                )
                for lr in (0.001, 0.003, 0.01)
                for strength in (1e2, 1e3, 1e4, 1e5)
            ),
        ),
        seeds=4,
    ),
    Table(
        "continual-alphabets",
        "Characters learned two at a time, on held-out alphabets",
        "continual",
        (
            Row("WarpGrad"),
            Row("no warp", {"method": "no-warp", "lr": 0.1}),
            Row("warp for the current sub-task", CURRENT),
            Row("EWC", {"method": "ewc", "lr": 0.1, "strength": 1e3}),
        ),
        seeds=4,
        preset="alphabets",
    ),
)

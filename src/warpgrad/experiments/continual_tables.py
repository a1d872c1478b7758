"""The declared tables of the continual experiment; the paper gives orders of magnitude, see `continual_results`."""

from __future__ import annotations

from warpgrad.experiments.base import Row, Table

PLAIN = (Row("no warp", {"method": "no-warp"}), Row("no warp, lr 0.01", {"method": "no-warp", "lr": 0.01}))
EWC = Row("EWC", {"method": "ewc", "lr": 0.003, "strength": 1e4})
"""Rows that meta-learn nothing."""

CURRENT = {"method": "warp-current", "credit": "full"}
"""Without earlier sub-tasks in the meta-loss all credits are one."""
MOVEMENT = {"credit": "movement", "meta_steps": 1500}
STEP = {"weighting": "balanced", "credit": "step", "judge_start": 2.5, "meta_lr": 0.0015}
"""Where earlier sub-tasks judge other things: the settings of the records made so."""
LONG = {"meta_steps": 3000}
"""Three times as long as the preset."""

TABLES = (
    Table(
        "continual",
        "Loss of new and old sub-tasks on held-out tasks",
        "continual",
        (
            Row("WarpGrad", LONG),
            *PLAIN,
            Row("warp for the current sub-task", {**CURRENT, **LONG}),
            EWC,
        ),
        seeds=4,
        preset="small",
    ),
    Table(
        "continual-small",
        "Loss of new and old sub-tasks on held-out tasks, after as many meta-steps as the preset has",
        "continual",
        (Row("WarpGrad"), Row("warp for the current sub-task", CURRENT)),
        seeds=4,
        preset="small",
    ),
    Table(
        "continual-movement",
        "Loss of new and old sub-tasks on held-out tasks, where the length of a step is credited too",
        "continual",
        (
            Row("WarpGrad", MOVEMENT),
            Row("warp for the current sub-task", {"method": "warp-current", **MOVEMENT}),
        ),
        seeds=4,
        preset="small",
    ),
    Table(
        "continual-credit",
        "Loss of new and old sub-tasks on held-out tasks, where earlier ones judge the step alone",
        "continual",
        (
            Row("WarpGrad", {**STEP, "meta_steps": 2000}),
            Row("WarpGrad, credit as in Eq. 11", {**STEP, "meta_steps": 2000, "credit": "full"}),
            Row("warp for the current sub-task", {**CURRENT, **STEP, "meta_steps": 2000}),
        ),
        seeds=4,
        preset="small",
    ),
    Table(
        "continual-long",
        "Loss of new and old sub-tasks on held-out tasks, where earlier ones judge the step alone for longer",
        "continual",
        (
            Row("WarpGrad", {**STEP, "meta_steps": 5000}),
            Row("warp for the current sub-task", {**CURRENT, **STEP, "meta_steps": 5000}),
        ),
        seeds=4,
        preset="small",
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

"""What is searched for the alphabets experiment, on validation alphabets: step sizes of every method, and the recipe.

Both are declared tables, so that how many trials a method had, and which, is on record with the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpgrad.experiments.base import Row, Table
from warpgrad.experiments.omniglot_config import SCRATCH
from warpgrad.experiments.omniglot_costs import equal_time

NAME = "omniglot"
_ON_VALIDATION: Mapping[str, Any] = {"split": "validation", "validation_tasks": 5}
_META_STEPS = 20
"""Of Warp-Leap in the search for step sizes; the others take as much processor time."""

_SETTINGS = {
    "inner_lr": "α", "meta_lr": "meta step", "theta0_lr": "step of θ0", "kfac_damping": "damping", "kfac_clip": "bound",
}  # fmt: skip
_STEP_SIZES = (0.03, 0.1, 0.3, 1.0)
_SCRATCH_STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def _trials(
    label: str, method: str, centre: Mapping[str, float], tried: Mapping[str, tuple[float, ...]], **settings: Any
) -> list[Row]:
    """One setting at a time, the others at the centre, which is the published value where there is one."""
    if method not in SCRATCH:
        settings = {**settings, "meta_steps": equal_time("small", method, _META_STEPS), "validate_every": 0}
    changes = [centre] + [
        {**centre, name: value} for name, values in tried.items() for value in values if value != centre[name]
    ]
    return [
        Row(
            ", ".join([label, *(f"{_SETTINGS[name]} {value:g}" for name, value in change.items())]),
            {"method": method, **_ON_VALIDATION, **settings, **change},
        )
        for change in changes
    ]


def _initialisation(label: str, method: str, *outer: float) -> list[Row]:
    """θ0's step size is tried up to ten times the published one, which is the second: it was for longer runs."""
    centre = {"inner_lr": 0.1, "theta0_lr": outer[1]}
    return _trials(label, method, centre, {"inner_lr": _STEP_SIZES, "theta0_lr": outer})


STEPS = Table(
    "omniglot-steps",
    "Step sizes of every method, seven trials each, on validation alphabets",
    NAME,
    (
        *_trials(
            "Warp-Leap",
            "warp-leap",
            {"inner_lr": 0.1, "meta_lr": 0.1},
            {"inner_lr": _STEP_SIZES, "meta_lr": _STEP_SIZES},
        ),
        *_initialisation("Leap", "leap", *_STEP_SIZES),
        *_initialisation("Reptile", "reptile", *_STEP_SIZES),
        *_initialisation("FOMAML", "fomaml", 0.15, 0.5, 1.5, 5.0),
        *_initialisation("MAML", "maml", 0.15, 0.5, 1.5, 5.0),
        *_initialisation("Finetuning", "finetuning", *_STEP_SIZES),
        *_trials("SGD", "sgd", {"inner_lr": 0.1}, {"inner_lr": _SCRATCH_STEP_SIZES}),
        *_trials(
            "KFAC",
            "kfac",
            {"kfac_damping": 0.03, "kfac_clip": 0.1},
            {"kfac_damping": (0.01, 0.03, 0.1, 0.3), "kfac_clip": (0.03, 0.1, 0.3, 1.0)},
        ),
        *_trials(
            "Random θ0",
            "sgd",
            {"inner_lr": 0.1},
            {"inner_lr": _SCRATCH_STEP_SIZES},
            scratch_batch=1,
            scratch_lr=1.0,
        ),
    ),
    seeds=1,
    preset="small",
)
"""SGD and KFAC take ten times the α named here, as in the paper; the paper names neither damping nor bound of KFAC."""


def _recipe(label: str, meta_steps: int = 80, **settings: Any) -> Row:
    own = {"warp_init": "scaled", "share": 0.2, "meta_steps": meta_steps}
    return Row(label, {"method": "warp-leap", **_ON_VALIDATION, **own, **settings})


RECIPE = Table(
    "omniglot-recipe",
    "What Warp-Leap learns most from in equal processor time, on validation alphabets",
    NAME,
    (
        _recipe("scaled start, a fifth replayed, SGD (default)"),
        _recipe("own start", warp_init="own"),
        _recipe("identity start", warp_init="identity"),
        _recipe("a tenth replayed", 113, share=0.1),
        _recipe("half replayed", 45, share=0.5),
        _recipe("all replayed", 30, share=1.0),
        _recipe("cosine schedule", meta_schedule="cosine"),
        _recipe("Adam 0.001", meta_optimiser="adam", meta_lr=0.001),
        _recipe("Adam 0.0003", meta_optimiser="adam", meta_lr=0.0003),
        _recipe("Adam 0.001, cosine schedule", meta_optimiser="adam", meta_lr=0.001, meta_schedule="cosine"),
        _recipe("approximate objective", 102, objective="approximate"),
        _recipe("approximate objective, half replayed", 60, objective="approximate", share=0.5),
        _recipe("batch 64", 30, batch_size=64),
        _recipe("identity start, cosine schedule", warp_init="identity", meta_schedule="cosine"),
        _recipe("identity start, a tenth replayed", 113, warp_init="identity", share=0.1),
        _recipe("identity start, Adam 0.001", warp_init="identity", meta_optimiser="adam", meta_lr=0.001),
    ),
    seeds=1,
    preset="small",
)
"""Meta-steps are such that all rows take about the processor time of the first, by `benchmarks/meta_step_cost.py`; the
scores on the way, against processor time, say the rest."""

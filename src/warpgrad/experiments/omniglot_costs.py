"""What a meta-step of each method costs, and how many of them take as long as Warp-Leap's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from warpgrad.experiments.omniglot_config import PRESETS

COSTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "paper": {
            "leap": 1.0, "reptile": 0.92, "fomaml": 1.15, "maml": 0.15, "finetuning": 0.96,
            "warp-leap": 6.88, "two-layer": 15.25, "approximate": 4.07,
        },
        "medium": {
            "leap": 1.0, "reptile": 0.99, "fomaml": 1.06, "maml": 0.16, "finetuning": 1.07,
            "warp-leap": 2.61, "two-layer": 5.45, "approximate": 2.09,
        },
        "small": {
            "leap": 1.0, "reptile": 0.92, "fomaml": 1.03, "maml": 0.14, "finetuning": 1.15,
            "warp-leap": 2.39, "two-layer": 4.39, "approximate": 1.88,
        },
        "demo": {
            "leap": 1.0, "reptile": 0.86, "fomaml": 0.9, "maml": 0.14, "finetuning": 1.23,
            "warp-leap": 6.13, "two-layer": 10.44, "approximate": 3.75,
        },
    }
)  # fmt: skip
"""Preset -> what is meta-trained -> processor time of a meta-step, relative to Leap's; the last two are Warp-Leap with
the two-layer warp and with the approximate objective. Measured once, by `benchmarks/meta_step_cost.py`, and fixed here:
meta-steps that depended on the clock could not be repeated."""


def equal_time(preset: str, what: str, meta_steps: int | None = None) -> int:
    """The meta-steps that take the processor time of Warp-Leap's at a preset, or of so many of them."""
    costs = COSTS[preset]
    return round((meta_steps or PRESETS[preset].meta_steps) * costs["warp-leap"] / costs[what])

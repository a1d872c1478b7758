"""What the synthetic experiment claims, as paired differences over the same surfaces and starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import by_seed
from warpgrad.report.statistics import Difference, Estimate, mean_interval, paired_difference

NAMES = {
    "gd": "gradient descent from x0",
    "gd_tuned": "gradient descent from x0, tuned step",
    "warp_matched": "WarpGrad from Ω(θ0) = x0",
    "warp": "WarpGrad from θ0 = x0",
    "gd_shifted": "gradient descent from Ω(x0)",
    "momentum": "momentum from x0",
    "adam": "Adam from x0",
}


@dataclass(frozen=True)
class Comparison:
    """How much lower `better` ends than `worse`; positive in favour of `better`."""

    label: str
    worse: str
    better: str
    meaning: str


COMPARISONS = (
    Comparison("geometry, from x0", "gd", "warp_matched", "both begin at x0 on the surface"),
    Comparison("geometry, from Ω(x0)", "gd_shifted", "warp", "both begin at Ω(x0) on the surface"),
    Comparison("shift of the start", "gd", "gd_shifted", "plain descent, with its start moved by Ω"),
    Comparison("shift and geometry", "gd", "warp", "what a user sees: θ0 = x0 for both"),
    Comparison("geometry, tuned step", "gd_tuned", "warp_matched", "both begin at x0; plain descent at its best step"),
    Comparison("against momentum", "momentum", "warp", "θ0 = x0 for both"),
    Comparison("against Adam", "adam", "warp", "θ0 = x0 for both"),
)


def scores(group: Group, column: str, *, matched_only: bool) -> dict[int, dict[int, list[float]]]:
    """seed -> surface -> final losses of its starts; with `matched_only`, of those whose start could be matched."""

    def of_surfaces(evaluation: dict[str, Any]) -> dict[int, list[float]]:
        surfaces = {}
        for place, (losses, matched) in enumerate(zip(evaluation["final"][column], evaluation["matched"], strict=True)):
            kept = [loss for loss, ok in zip(losses, matched, strict=True) if ok or not matched_only]
            if kept:
                surfaces[place] = kept
        return surfaces

    return by_seed(group, of_surfaces)


def advantage(group: Group, comparison: Comparison) -> Difference:
    """The paired difference of final losses, worse − better."""
    matched_only = "warp_matched" in (comparison.worse, comparison.better)
    return paired_difference(
        scores(group, comparison.worse, matched_only=matched_only),
        scores(group, comparison.better, matched_only=matched_only),
        names=(NAMES[comparison.worse], NAMES[comparison.better]),
    )


def final_loss(group: Group, column: str) -> Estimate:
    return mean_interval(scores(group, column, matched_only=False), name=NAMES[column])


def fraction_reached(group: Group, column: str) -> Estimate:
    """Fraction of starts that end at a minimum, over surfaces that have one."""
    values = by_seed(group, lambda evaluation: dict(enumerate(evaluation["reached"][column])))
    return mean_interval(values, name=NAMES[column])


def comparison_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table for the terminal: columns of one group, or the two geometries of many."""
    if len(groups) > 1:
        header = ["setting", *(comparison.label for comparison in COMPARISONS[:4])]
        rows = [[group.label, *(advantage(group, item).cell() for item in COMPARISONS[:4])] for group in groups]
        return header, rows
    (group,) = groups
    rows = [
        [NAMES[name], final_loss(group, name).cell(), f"{fraction_reached(group, name).mean:.1%}"] for name in NAMES
    ]
    rows += [[f"{item.label} (loss lower by)", advantage(group, item).cell(), ""] for item in COMPARISONS]
    return ["after 100 steps", "loss [95 % interval]", "reached a minimum"], rows

"""What the multi-shot experiment claims: accuracies per held-out task at two horizons, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import distinct, estimate
from warpgrad.report.statistics import Difference

TIERED = "tieredImageNet"
"""What the paper's figures are about."""


def setting(group: Group) -> str:
    """E.g. `FC100, 10-way 500-shot (test)`."""
    found = group.evaluations[0]
    fewest, most = found["shots"]
    shots = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{found['data']}, {found['ways']}-way {shots}-shot ({found['split']})"


def settings_of(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(setting(group) for group in groups))


def horizons(group: Group) -> tuple[int, int]:
    """The steps of the headline, and of the whole adaptation."""
    found = group.evaluations[0]
    return found["headline_steps"], found["tested_at"][-1]


def difference(first: Group, second: Group, measure: str = "accuracy") -> Difference | None:
    """first − second per task; None where they share no meta-seed, or were tested on other tasks or at other steps."""
    if setting(first) != setting(second) or horizons(first) != horizons(second):
        return None
    return comparison.difference(first, second, measure)


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table for the terminal; every row against the first one."""
    groups = distinct(groups)
    steps = [" or ".join(dict.fromkeys(str(horizons(group)[place]) for group in groups)) for place in (0, 1)]
    header = [
        " and ".join(settings_of(groups)),
        f"accuracy % after {steps[0]} steps [95 % interval]",
        f"minus {groups[0].label}",
        f"after {steps[1]} steps",
        f"minus {groups[0].label}",
        f"paper ({TIERED})",
    ]
    rows = []
    for place, group in enumerate(groups):
        row = [group.label]
        for measure in ("accuracy", "accuracy_at_end"):
            against = difference(group, groups[0], measure) if place else None
            row += [estimate(group, measure).cell(), "" if against is None else against.cell()]
        rows.append([*row, "" if group.paper is None else f"{group.paper:g}"])
    return header, rows

"""What is compared between the methods of the text experiment, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group


def shots_of(groups: Sequence[Group]) -> list[int]:
    """The numbers of shots that every run was tested at."""
    found = [set(evaluation["shots"]) for group in groups for evaluation in group.evaluations]
    return sorted(set.intersection(*found))


def has(groups: Sequence[Group], measure: str) -> bool:
    return all(measure in evaluation for group in groups for evaluation in group.evaluations)


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table for the terminal: accuracy at each number of shots, every row against the first one."""
    titles = {f"accuracy_{shots}shot": f"{shots} shot, % [95 %]" for shots in shots_of(groups)}
    split = " and ".join(dict.fromkeys(each["split"] for group in groups for each in group.evaluations))
    about = f"{' and '.join(comparison.data_of(groups))} ({split} domains)"
    return comparison.result_lines(groups, about, titles)

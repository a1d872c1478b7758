"""The page of the few-shot experiment: accuracies beside the published ones, curves, memory of a meta-step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import distinct, settings_of
from warpgrad.experiments.comparison_page import Measure, comparison_page
from warpgrad.report import Column, Page
from warpgrad.report.memory import memory_section

MEMORY = Path("results/few-shot-memory.json")
"""Written by benchmarks/memory_few_shot.py; its section is on the page where it is there."""


def build_page(groups: Sequence[Group], title: str) -> Page:
    return comparison_page(
        distinct(groups),
        title,
        f"Few-shot experiment (§4.1, App. H) on {settings_of(groups)}",
        held_out="held-out episodes",
        measures=[Measure("accuracy", "Accuracy after adaptation", compared=True)],
        plain=[(Column("before it", "%"), _before)],
        caption="The same held-out episodes for every row and every meta-seed.",
        notes=list(dict.fromkeys(note for group in groups for item in group.evaluations for note in item["notes"])),
        published="published {:g}",
        sections=[memory_section(MEMORY)] if MEMORY.is_file() else [],
    )


def _before(group: Group) -> str:
    """Mean accuracy before the first step."""
    return f"{sum(item['curve'][0] for item in group.evaluations) / len(group.evaluations):.1f}"

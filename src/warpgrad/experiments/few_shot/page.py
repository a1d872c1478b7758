"""The page of the few-shot experiment: accuracies beside the published ones, and curves."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import difference, distinct, settings_of
from warpgrad.experiments.comparison_page import Measure, comparison_page
from warpgrad.experiments.few_shot.results import at_equal_time
from warpgrad.report import Column, Page, Paragraph, Section


def build_page(groups: Sequence[Group], title: str) -> Page:
    return comparison_page(
        distinct(groups),
        title,
        f"Few-shot experiment (§4.1, App. H) on {settings_of(groups)}",
        held_out="held-out episodes",
        measures=[Measure("accuracy", "Accuracy after adaptation", compared=True)],
        plain=[
            (Column("before it", "%"), _before),
            (Column("meta-steps"), _meta_steps),
            (Column("their processor time", "min"), _minutes),
        ],
        caption="The same held-out episodes for every row and every meta-seed.",
        notes=list(dict.fromkeys(note for group in groups for item in group.evaluations for note in item["notes"])),
        published="published {:g}",
        sections=_equal_time(groups),
        training="`validation/` and `test/` scores are means over held-out episodes after K steps. The weights with "
        "the best validation accuracy are the ones tested; test scores on the way choose nothing.",
    )


def _before(group: Group) -> str:
    """Mean accuracy before the first step."""
    return f"{sum(item['curve'][0] for item in group.evaluations) / len(group.evaluations):.1f}"


def _meta_steps(group: Group) -> str:
    """How many were done, which early stopping may change from seed to seed."""
    done = [run.summary["steps"] for run in group.runs]
    return f"{min(done)}" if min(done) == max(done) else f"{min(done)} to {max(done)}"


def _minutes(group: Group) -> str:
    """Processor time of meta-training, mean over meta-seeds."""
    return f"{sum(run.summary['processor_seconds'] for run in group.runs) / len(group.runs) / 60:.1f}"


def _equal_time(groups: Sequence[Group]) -> list[Section]:
    """The first row's method against each other in the rows that had the same processor time; nothing without such."""
    equal = at_equal_time(groups)
    found = [difference(equal[0], other) for other in equal[1:]]
    sentences = [Paragraph(each.sentence(unit="points of accuracy")) for each in found if each is not None]
    if not sentences:
        return []
    about = (
        "As many meta-steps as take the processor time of MAML's row, fixed beforehand by the cost of a meta-step of "
        "each method (benchmarks/few_shot_cost.py). Validations are not counted; all rows have as many."
    )
    return [Section("At equal processor time", [Paragraph(about), *sentences])]

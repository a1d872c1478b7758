"""The page of the text experiment: accuracies at each number of shots, against steps and processor seconds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison import data_names, data_of, distinct
from warpgrad.experiments.comparison_page import Measure, comparison_page, shown_first
from warpgrad.report import Block, Chart, Column, Page, Paragraph, Section, Series
from warpgrad.report.tables import Cell


def build_page(groups: Sequence[Group], title: str) -> Page:
    groups = distinct(groups)
    shots = shots_of(groups)
    measures = [
        Measure(f"accuracy_{number}shot", f"{number} shot", compared=True, when=f"With {number} of each: ")
        for number in shots
    ]
    others = [
        Measure(f"{kind}_{number}shot", f"{words}, {number} shot")
        for kind, words in (("together", "all labels at once"), ("auroc", "AUROC out of scope"))
        for number in shots
        if has(groups, f"{kind}_{number}shot")
    ]
    notes = [
        "Fine-tuning, logistic regression and nearest centroid start from the pretrained encoder; the other "
        "methods are meta-trained once for all numbers of shots. Methods without steps are shown as flat lines."
    ]
    if any(measure.name.startswith("auroc") for measure in others):
        notes.append(
            "AUROC: how well the largest probability separates sentences of the domain from sentences out of scope."
        )
    return comparison_page(
        groups,
        title,
        f"Intents of sentences of {data_names(groups)}",
        held_out="new domains",
        measures=[*measures, *others],
        plain=[(Column("meta-training", "min"), _minutes), (Column(f"adaptation, {shots[-1]} shot", "s"), _seconds)],
        caption="The same support sets and test sentences for every row of a meta-seed.",
        notes=notes,
        parts={f"{number}": f"{number} shot" for number in shots},
        sections=[_against_seconds(groups, shots, shown_first(groups, measures[0]))],
        training="`validation/` scores are means over the validation domain, 5 shots, adapted as at test. The weights "
        "with the lowest validation loss are tested.",
    )


def _against_seconds(groups: Sequence[Group], shots: Sequence[int], first: Collection[str]) -> Section:
    """Plot accuracy against the processor time of adaptation, without the time of the lower layers.

    The curves of `first` are shown at first, or all if it is empty.
    """
    figures: list[Block] = [
        Paragraph(
            "Processor seconds of adaptation on one core, mean over tasks and meta-seeds, with the fit of the head and "
            "without the one-time cost of the frozen lower layers."
        )
    ]
    for number in shots:
        series = [
            Series.line(group.label, _mean(group, "seconds_at", number), _mean(group, "curves", number))
            for group in groups
            if any(run.config["method"] not in ("centroid", "logistic") for run in group.runs)
        ]
        if series:
            figures.append(
                Chart(
                    series,
                    x_label="processor seconds of adaptation",
                    y_label="accuracy on new domains, %",
                    title=f"{number} shot",
                    alt=f"Accuracy against processor seconds of adaptation for every row, {number} shot.",
                    caption="Mean over new domains and meta-seeds.",
                    first=first,
                )
            )
    return Section("Accuracy against time", figures)


def _mean(group: Group, part: str, shots: int) -> list[float]:
    def of(evaluation: dict[str, Any]) -> Any:
        found = evaluation[part][f"{shots}"]
        return np.mean(list(found.values()), axis=0) if isinstance(found, dict) else np.asarray(found)

    mean: list[float] = np.mean([of(each) for each in group.evaluations], axis=0).tolist()
    return mean


def _minutes(group: Group) -> Cell:
    """Return the processor time of meta-training in minutes, as a mean over meta-seeds."""
    return f"{sum(run.summary['processor_seconds'] for run in group.runs) / len(group.runs) / 60:.1f}"


def _seconds(group: Group) -> Cell:
    """Return the processor seconds of adaptation to one task at the largest number of shots."""
    last = [each["seconds_at"][f"{shots_of([group])[-1]}"][-1] for each in group.evaluations]
    return f"{sum(last) / len(last):.2f}"


def shots_of(groups: Sequence[Group]) -> list[int]:
    """Return the numbers of shots at which every run was tested."""
    found = [set(evaluation["shots"]) for group in groups for evaluation in group.evaluations]
    return sorted(set.intersection(*found))


def has(groups: Sequence[Group], measure: str) -> bool:
    return all(measure in evaluation for group in groups for evaluation in group.evaluations)


def result_lines(groups: Sequence[Group]) -> Lines:
    """Return the table for the terminal: accuracy at each number of shots, each row compared with the first."""
    titles = {f"accuracy_{shots}shot": f"{shots} shot, % [95 %]" for shots in shots_of(groups)}
    split = " and ".join(dict.fromkeys(each["split"] for group in groups for each in group.evaluations))
    about = f"{' and '.join(data_of(groups))} ({split} domains)"
    return comparison.result_lines(groups, about, titles)

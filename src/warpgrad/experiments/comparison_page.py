"""Pages of experiments: the frame that all of them share, and the page that compares methods row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from warpgrad.experiments.base import C, Group
from warpgrad.experiments.comparison import difference, estimate
from warpgrad.report import (
    Best,
    Block,
    Cell,
    Chart,
    Collapsible,
    Column,
    Difference,
    Forest,
    ForestRow,
    Gallery,
    Mark,
    Note,
    Page,
    Paragraph,
    Run,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    Value,
    configuration,
    metric_charts,
    repetition,
)
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM
from warpgrad.statistics.formatting import count

BESIDE = "; the paper's figures beside them are."
"""The end of a warning that results are not on the paper's data, where `beside_paper`."""


def beside_paper(groups: Sequence[Group]) -> bool:
    """Return whether the page of these rows shows figures of the paper."""
    return any(group.paper is not None for group in groups)


def config_of(kind: type[C], run: Run) -> C:
    """Return the settings of a run as the experiment's config class `kind`."""
    known = {field.name for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in run.config.items() if name in known
    }
    return kind(**values)


def experiment_page(
    groups: Sequence[Group],
    title: str,
    about: str,
    sections: Sequence[Section],
    *,
    sizes: str = "",
    training: str = "",
    first: Collection[str] = (),
) -> Page:
    """Build the page of some runs: conditions, the experiment's sections, training curves, and how to repeat the runs.

    Args:
        groups: The runs.
        title: Of the page.
        about: The experiment, as the line below the title begins.
        sections: What is the experiment's own.
        sizes: How that line ends: how much was run, as far as a reader has to know.
        training: What the reader has to know about the curves of meta-training.
        first: The rows whose curves of meta-training are shown at first; empty means all.
    """
    runs = [run for group in groups for run in group.runs]
    presets = " and ".join(dict.fromkeys(run.preset for run in runs))
    line = [about, f"preset {presets}", count(len({run.seed for run in runs}), "meta-seed"), sizes]
    page = Page(title, f"{', '.join(filter(None, line))}.").add(*sections)
    named: dict[str, list[Run]] = {}
    for group in groups:
        named.setdefault(group.label, []).extend(group.runs)
    charts = metric_charts(named, first=first)
    if charts:
        words = [Paragraph(training)] if training else []
        page.add(Section("Meta-training", [*words, Gallery(charts)]))
    return page.add(Section("Configuration", configuration(runs)), Section("Reproduce", repetition(runs)))


@dataclass(frozen=True)
class Measure:
    """A column of the comparison: one value for every held-out task."""

    name: str
    """The name of the entry in the evaluation: held-out task -> value."""
    title: str
    unit: str = "%"
    best: Best | None = "highest"
    digits: int = 1
    compared: bool = False
    """Whether to add a column of paired differences to the first row, and a sentence about each."""
    when: str = ""
    """The beginning of such a sentence."""
    published: bool = False
    """Whether to show the paper's figure beside it; the first measure always has it."""


def comparison_page(
    groups: Sequence[Group],
    title: str,
    about: str,
    *,
    held_out: str,
    measures: Sequence[Measure],
    caption: str,
    notes: Sequence[str],
    published: str = "paper {:g}",
    warning: str = "",
    plain: Sequence[tuple[Column, Callable[[Group], Cell]]] = (),
    marks: Sequence[Mark] = (),
    beyond: str = "",
    parts: Mapping[str, str] = MappingProxyType({}),
    sections: Sequence[Section] = (),
    training: str = "",
) -> Page:
    """Build a page that compares methods: the headline, all rows, learning curves, and the experiment's own sections.

    Args:
        groups: The rows, named apart; the first is what the others are compared with.
        title: Of the page.
        about: The experiment and its data.
        held_out: What the methods were tested on, e.g. `held-out episodes`.
        measures: The columns of the table; the first is the headline.
        caption: Of the table.
        notes: Below the table.
        published: How the figure of the paper is given.
        warning: Below the headline.
        plain: Further columns, without intervals.
        marks: Steps that the learning curves mark.
        beyond: The end of the caption of the learning curves.
        parts: Where there are several learning curves of each row: their names in the evaluation, and their titles.
        sections: What follows the learning curves.
        training: What the reader has to know about the curves of meta-training.
    """
    first = shown_first(groups, measures[0])
    own = [
        _headline(groups, held_out, measures, published, warning),
        _table(groups, measures, plain, caption, notes),
        _learning_curves(groups, held_out, marks, beyond, parts, first),
        *sections,
    ]
    return experiment_page(groups, title, about, own, training=training, first=first)


def _headline(
    groups: Sequence[Group], held_out: str, measures: Sequence[Measure], published: str, warning: str
) -> Section:
    first, best = groups[0], [measure for measure in measures if _beside_paper(measure, measures)]
    if len(groups) > 1 and is_search(groups):
        blocks: list[Block] = [*winners(groups, best, held_out)]
        every: list[Block] = [ranking(groups, measure, held_out) for measure in best]
        blocks += [Collapsible("Every trial", every)] if blocks else every
        return Section(f"Accuracy on {held_out}", [*blocks, *([Note(warning, "warning")] if warning else [])])
    several = len([measure for measure in measures if measure.compared or measure in best]) > 1
    tiles = [
        Tile.of(
            f"{group.label}: {measure.title}" if several else group.label,
            estimate(group, measure.name),
            measure.digits,
            "" if group.paper is None else published.format(group.paper),
            measure.unit,
        )
        for group in _leading(groups, measures[0])
        for measure in best
    ]
    plots: list[Block] = []
    sentences: list[Block] = []
    for measure in measures:
        found = [difference(first, other, measure.name) for other in groups[1:]] if measure.compared else []
        known = [each for each in found if each is not None]
        if known:
            plots.append(lead(known, f"{measure.title}: how far **{first.label}** is ahead", unit="points", digits=1))
        sentences += [
            Paragraph(f"{measure.when}{each.sentence(unit='points of accuracy', digits=measure.digits)}")
            for each in known
        ]
    words = [Collapsible("The same in words", sentences)] if sentences else []
    return Section(
        f"Accuracy on {held_out}", [*plots, *([Note(warning, "warning")] if warning else []), Tiles(tiles), *words]
    )


def _leading(groups: Sequence[Group], measure: Measure) -> list[Group]:
    """Return the rows that have a tile, in their order: the first, and the three best of the others."""
    first, *others = groups
    others.sort(key=lambda group: estimate(group, measure.name).mean, reverse=measure.best != "lowest")
    return [group for group in groups if group is first or group in others[: TILED - 1]]


def lead(found: Sequence[Difference], caption: str, *, unit: str = "", digits: int | None = None) -> Forest:
    """Plot how far the first method, the same in every pair, is ahead of the second: the headline of a comparison.

    Values above 0 must favour the first.
    """
    rows = [ForestRow(each.second, each) for each in found]
    return Forest(rows, caption, unit, "the other is ahead", f"{found[0].first} is ahead", digits)


def is_search(groups: Sequence[Group]) -> bool:
    """Return whether the rows are trials of a search: all were validated, none was tested."""
    return not any(evaluation.get("split", "test") == "test" for group in groups for evaluation in group.evaluations)


def winners(groups: Sequence[Group], measures: Sequence[Measure], held_out: str) -> list[Forest]:
    """Plot the best trial of each method, best first; empty if there is one method, or one trial of each."""
    found = []
    for measure in measures:
        if chosen := best_trials(groups, measure):
            caption = f"{measure.title} on {held_out} of the validation split: the best trial of each method."
            found.append(Forest(chosen, caption, measure.unit, digits=measure.digits))
    return found


def shown_first(groups: Sequence[Group], measure: Measure) -> list[str]:
    """Return the rows whose curves are shown at first: of a search, the best trial of each method; empty means all."""
    return [row.label for row in best_trials(groups, measure)] if is_search(groups) else []


def best_trials(groups: Sequence[Group], measure: Measure) -> list[ForestRow]:
    """Return the best trial of each method, best first; empty if there is one method, or one trial of each."""
    trials: dict[str, list[Group]] = {}
    for group in groups:
        # Rows of one method can be two methods to a reader, such as SGD at two batch sizes: the label tells them apart.
        trials.setdefault(group.label.partition(",")[0], []).append(group)
    if len(trials) == len(groups) or len(trials) == 1:
        return []
    return ranked([ranked(own, measure)[0] for own in trials.values()], measure)


TILED = 4
"""The largest number of rows that have tiles."""
RANKED = 24
"""The largest number of rows shown in the ranking of a search."""


def ranking(groups: Sequence[Group], measure: Measure, held_out: str) -> Forest:
    """Plot the rows of a search, best first."""
    found = ranked(groups, measure)
    which = f"the best {RANKED} of {len(found)} rows" if len(found) > RANKED else "every row"
    caption = f"{measure.title} on {held_out} of the validation split: {which}, the best first."
    return Forest(found[:RANKED], caption, measure.unit, digits=measure.digits)


def ranked(rows: Sequence[Group | ForestRow], measure: Measure) -> list[ForestRow]:
    """Return the estimates of a measure, best first."""
    found = [row if isinstance(row, ForestRow) else ForestRow(row.label, estimate(row, measure.name)) for row in rows]
    return sorted(found, key=lambda row: row.estimate.mean, reverse=measure.best != "lowest")


def _table(
    groups: Sequence[Group],
    measures: Sequence[Measure],
    plain: Sequence[tuple[Column, Callable[[Group], Cell]]],
    caption: str,
    notes: Sequence[str],
) -> Section:
    first = groups[0]
    columns: list[Column | str] = ["Method"]
    # A row alone has nothing to be compared with, and the first trial of a search is none that others are held against.
    compared = {measure.name for measure in measures if measure.compared and len(groups) > 1 and not is_search(groups)}
    for measure in measures:
        columns.append(Column(measure.title, measure.unit, best=measure.best))
        if measure.name in compared:
            minus = f"minus {first.label}"
            columns.append(Column(minus if len(compared) == 1 else f"{measure.title}, {minus}", "points"))
    rows: list[list[Cell]] = []
    for group in groups:
        row: list[Cell] = [group.label]
        for measure in measures:
            paper = group.paper if _beside_paper(measure, measures) else None
            row.append(Value.of(estimate(group, measure.name), paper=paper, digits=measure.digits))
            if measure.name in compared:
                against = None if group is first else difference(group, first, measure.name)
                row.append(None if against is None else Value.of(against, digits=measure.digits))
        rows.append([*row, *(cell(group) for _, cell in plain)])
    table = Table([*columns, *(column for column, _ in plain)], rows, caption)
    return Section("All rows", [table, *map(Note, notes)])


def _beside_paper(measure: Measure, measures: Sequence[Measure]) -> bool:
    return measure is measures[0] or measure.published


def _learning_curves(
    groups: Sequence[Group],
    held_out: str,
    marks: Sequence[Mark],
    beyond: str,
    parts: Mapping[str, str],
    first: Sequence[str],
) -> Section:
    bands = f"; bands are 95 % intervals over meta-seeds, where there are {SEEDS_FOR_A_CLAIM} or more"
    seeds = max(len({run.seed for run in group.runs}) for group in groups)
    caption = f"Mean over {held_out}{bands if seeds >= SEEDS_FOR_A_CLAIM else ''}.{beyond}"
    if first:
        caption += " At first, only the best trial of each method is shown; click a name to add or remove its curve."
    alt = ", ".join(["Accuracy against adaptation steps for every row", *(f"a line at {mark.label}" for mark in marks)])
    charts: list[Block] = []
    for part, title in parts.items() or [(None, "")]:
        series = [
            Series.mean(
                group.label,
                group.evaluations[0]["tested_at"],
                [_mean_curve(item, part) for item in group.evaluations],
                seeds=[run.seed for run in group.runs],
            )
            for group in groups
        ]
        charts.append(
            Chart(
                series,
                x_label="step of adaptation",
                y_label=f"accuracy on {held_out}, %",
                title=title,
                marks=marks,
                alt=", ".join(filter(None, [alt, title])) + ".",
                caption=caption,
                first=first,
            )
        )
    return Section("Learning curves", charts)


def _mean_curve(evaluation: dict[str, Any], part: str | None) -> list[float]:
    """Return the mean curve of a run, which is stored either as such or for each held-out task."""
    if "curve" in evaluation:
        return list(evaluation["curve"])
    found = evaluation["curves"] if part is None else evaluation["curves"][part]
    mean: list[float] = np.mean(list(found.values()), axis=0).tolist()
    return mean

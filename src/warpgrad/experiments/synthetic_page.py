"""The page of the synthetic experiment: what is shift, what is geometry, and what it looks like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpgrad.engine.run_directory import newest_checkpoint
from warpgrad.engine.state import load_learner
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison_page import config_of, experiment_page
from warpgrad.experiments.minima import CURVATURE, RADIUS
from warpgrad.experiments.synthetic_evaluation import Test
from warpgrad.experiments.synthetic_figures import clearest, examples, surfaces_3d, task_grid, warp_grid
from warpgrad.experiments.synthetic_results import (
    COMPARISONS,
    NAMES,
    advantage,
    final_loss,
    fraction_reached,
)
from warpgrad.experiments.synthetic_setup import SyntheticConfig, build
from warpgrad.report import (
    Block,
    Column,
    Figure,
    Gallery,
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
    curves,
)
from warpgrad.report.formatting import between, number
from warpgrad.report.statistics import Difference
from warpgrad.report.tables import Cell


def build_page(groups: Sequence[Group], title: str) -> Page:
    """One group: the whole story. Several: the sweep's table."""
    only = groups[0]
    config = only.runs[0].config
    if len(groups) == 1:
        sections = [_headline(only), _table(only), _curves(only), *_pictures(only.runs[0])]
    else:
        sections = [_sweep(groups)]
    sizes = f"{config['test_surfaces']} surfaces × {config['test_starts']} starts each"
    return experiment_page(groups, title, "Synthetic experiment (App. D)", sections, sizes=sizes)


def _headline(group: Group) -> Section:
    found = {item.label: advantage(group, item) for item in COMPARISONS}
    raw, shift = found["shift and geometry"].mean, found["shift of the start"].mean
    share = f"{shift / raw:.0%} of it is shift" if raw > 0 else "there is none to divide"
    tiles = [
        _tile("Geometry, both from x0", found["geometry, from x0"], "lower than gradient descent"),
        _tile("Geometry, both from Ω(x0)", found["geometry, from Ω(x0)"], "lower than gradient descent"),
        _tile("Raw advantage, θ0 = x0", found["shift and geometry"], share),
    ]
    sentences = [Paragraph(found[item.label].sentence()) for item in COMPARISONS]
    explained = Paragraph(
        "Ω moves the place where descent begins, and bends the path from there. Only the second is geometry. So the "
        "warp is compared twice at equal starts: **matched**, WarpGrad begins at θ0 with Ω(θ0) = x0 against gradient "
        "descent from x0; and **shifted**, WarpGrad begins at θ0 = x0 against gradient descent from Ω(x0). A geometry "
        "may do no more than shorten steps where surfaces are steep, so gradient descent with its best step size is "
        "one more control."
    )
    return Section("What is geometry, and what is not", [Tiles(tiles), explained, *sentences])


def _tile(label: str, found: Difference, detail: str) -> Tile:
    ends = between(found.interval.low, found.interval.high, 3, signed=True) if found.interval.bounded else "no interval"
    badge = "; indicative" if found.indicative else ""
    return Tile(label, number(found.mean, 3, signed=True), f"{ends}; {detail}{badge}")


def _table(group: Group) -> Section:
    rows: list[list[Cell]] = [
        [name, Value.of(final_loss(group, key), digits=3), Value.of(fraction_reached(group, key), digits=3)]
        for key, name in NAMES.items()
    ]
    columns: list[Column | str] = ["Method", Column("Loss after 100 steps", best="lowest"),
                                   Column("Fraction that reaches a minimum", best="highest")]  # fmt: skip
    evaluations = group.evaluations
    failures = sum(evaluation["metrics"]["unmatched_starts"] for evaluation in evaluations)
    total = sum(len(values) for evaluation in evaluations for values in evaluation["final"]["gd"])
    without = sum(len(evaluation["final"]["gd"]) - evaluation["with_minimum"] for evaluation in evaluations)
    shift = np.mean([evaluation["metrics"]["mean_shift"] for evaluation in evaluations])
    kept = np.mean([evaluation["metrics"]["orientation_kept"] for evaluation in evaluations])
    notes: list[Block] = [
        Note(
            f"A minimum is a point of the square with gradient 0 and curvatures above {CURVATURE:g}; it is reached "
            f"within {RADIUS:g}. {without} surfaces without one are left out of that column."
        ),
        Note(
            f"Coverage: Ω(θ0) = x0 could be solved, by Newton's method and then path following, for {total - failures} "
            f"of {total} starts ({failures} failures, left out of the matched comparison). Ω moves a start by "
            f"{shift:.2f} on average and keeps orientation (det DΩ > 0) at {kept:.1%} of the starts."
        ),
    ]
    return Section("All columns", [Table(columns, rows, "The same surfaces and starts for every row."), *notes])


def _curves(group: Group) -> Section:
    steps = np.arange(len(group.evaluations[0]["curves"]["gd"]))
    series = [
        Series.mean(name, steps, [evaluation["curves"][key] for evaluation in group.evaluations])
        for key, name in NAMES.items()
    ]
    image = curves(series, x_label="step", y_label="mean loss on held-out surfaces", size=(7.2, 4.4))
    caption = "Mean loss over all held-out surfaces and starts; bands are 95 % intervals over meta-seeds."
    return Section("Loss against step", [Figure(image, "Loss against step for every method.", caption)])


def _pictures(run: Run) -> list[Section]:
    config = config_of(SyntheticConfig, run)
    test = Test(config, load_learner(build(config), newest_checkpoint(run.path)))
    columns, matched = test.descents()
    chosen = examples(test, columns, clearest(test, columns, matched, 3))
    plain = examples(test, columns, [place * config.test_starts for place in range(min(12, config.test_surfaces))])
    words = "Black: gradient descent. Magenta: WarpGrad. Both begin at the same point of the native surface."
    surfaces: list[Block] = [
        Figure(
            surfaces_3d(test, chosen),
            "Three surfaces in 3-D, warped above and native below, with both descents.",
            f"{words} Chosen: the three held-out surfaces of seed {run.seed} where WarpGrad gains most "
            "without leaving the square.",
        ),
        Figure(
            task_grid(plain),
            "Contours of twelve held-out surfaces with both descents.",
            f"{words} Not chosen: the first {len(plain)} held-out surfaces of seed {run.seed}, first start each. Above "
            "each: final loss of gradient descent | WarpGrad.",
        ),
    ]
    warp = Figure(warp_grid(test), "The image of a square grid under Ω.", f"The learned Ω of seed {run.seed}.")
    return [Section("Surfaces and descents", surfaces), Section("The learned warp", [Gallery([warp])])]


def _sweep(groups: Sequence[Group]) -> Section:
    shown = COMPARISONS[:4]
    rows: list[list[Cell]] = [
        [group.label, *(Value.of(advantage(group, item), digits=3) for item in shown),
         Value.of(final_loss(group, "warp"), digits=3)]
        for group in groups
    ]  # fmt: skip
    columns: list[Column | str] = [
        "Meta-optimiser and step size",
        *(Column(item.label, best="highest") for item in shown),
    ]
    columns.append(Column("loss of WarpGrad from θ0 = x0", best="lowest"))
    return Section(
        "The sweep",
        [
            Paragraph("How much lower the loss is, on validation surfaces; the chosen setting is the preset's."),
            Table(columns, rows, "Paired differences over the same surfaces and starts."),
        ],
    )

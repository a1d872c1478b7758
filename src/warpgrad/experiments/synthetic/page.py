"""The page of the synthetic experiment: the effects of shift and of geometry, smoothness, and pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison_page import experiment_page
from warpgrad.experiments.synthetic.config import SyntheticConfig, descending_at_test, tuned_lr
from warpgrad.experiments.synthetic.evaluation import EXAMPLES, descend_surfaces
from warpgrad.experiments.synthetic.methods import omega_of, rule, rule_at_test
from warpgrad.experiments.synthetic.results import (
    HEADLINES,
    MET,
    SMOOTHER,
    advantage,
    between_groups,
    comparisons,
    curvature,
    final_loss,
    fraction_reached,
    is_search,
    names,
    smoothness,
    synthetic_config,
)
from warpgrad.experiments.synthetic.surfaces import CURVATURE, EDGE, RADIUS, minima, surface
from warpgrad.report import (
    PALETTE,
    Block,
    Cell,
    Chart,
    Collapsible,
    Column,
    Figure,
    Forest,
    ForestRow,
    Line,
    Note,
    Page,
    Panel,
    Paragraph,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    Value,
    appearances,
    panels,
)

_RULES = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam"}
COLOURS = {
    column: look.colour
    for column, look in zip(
        ("sgd_tuned", "adam_tuned", "warp"), appearances(["SGD", "Adam", "WarpGrad"]).values(), strict=True
    )
}
"""The columns whose descents are drawn, in the same colours as in charts."""
_SIDE = 121

Positions = NDArray[np.float64]
"""Positions on a surface, [K+1, starts, 2]."""


@dataclass(frozen=True)
class Example:
    """One held-out surface and the descents from all its starts."""

    coefficients: Tensor
    starts: Positions
    """x0, [starts, 2]."""
    theta: Positions
    """WarpGrad's θ's, from θ0 = x0."""
    paths: Mapping[str, Positions]
    """Column -> its positions on the surface."""
    final: Mapping[str, float]
    """Column -> mean height at the end."""

    def heights(self, places: Positions) -> NDArray[np.float64]:
        found: NDArray[np.float64] = surface(torch.from_numpy(places), self.coefficients.double()).numpy()
        return found


def redrawn(evaluation: Mapping[str, Any], config: SyntheticConfig) -> tuple[nn.Module, list[Example]]:
    """Return Ω of a run, and recompute the descents on the surfaces that are stored in its evaluation."""
    omega = omega_of(config.hidden, evaluation["omega"])
    rules = {name: rule(config, name, tuned_lr(config, name)) for name in ("sgd", "adam")}
    found = []
    for kept in evaluation["examples"]:
        starts = torch.tensor(kept["starts"])
        coefficients = torch.tensor(kept["coefficients"])
        go = partial(
            descend_surfaces, starts=starts, coefficients=coefficients.expand(len(starts), -1), steps=config.steps
        )
        thetas = go(omega, rule_at_test(config)).thetas
        paths = {f"{name}_tuned": go(None, own).thetas.double().numpy() for name, own in rules.items()}
        paths["warp"] = omega(thetas).double().numpy()
        final = {name: float(np.mean(kept["final"][name])) for name in COLOURS}
        found.append(Example(coefficients, starts.double().numpy(), thetas.double().numpy(), paths, final))
    return omega, found


def descents(shown: Sequence[Example], labels: Mapping[str, str], *, alt: str, caption: str) -> Figure:
    """Draw contours and all descents, with a row for each surface and a column for each method in `labels`."""
    rows = [
        [_descents_panel(example, name, "" if row else label) for name, label in labels.items()]
        for row, example in enumerate(shown)
    ]
    legend = [
        Line([], "white", "x0", dash="", marker="o", marker_size=4, marker_edge="black"),
        Line([], COLOURS["warp"], "x0 moved to Ω(x0)", dash=":"),
        Line([], "#7c858e", "after the last step", dash="", marker="*", marker_size=9),
        Line([], PALETTE[-1], "minimum", dash="", marker="x"),
    ]
    return panels(rows, size=(2.5 * len(labels), 2.5 * len(shown) + 0.6), legend=legend, alt=alt, caption=caption)


def _descents_panel(example: Example, name: str, title: str) -> Panel:
    grid, colour, paths = _grid(), COLOURS[name], example.paths[name]
    heights = surface(grid, example.coefficients)
    lines = []
    for start, path in zip(example.starts, paths.swapaxes(0, 1), strict=True):
        lines += [
            Line(path, "white", width=2.6, alpha=0.75),
            Line(path, colour, width=1.4),
            Line(np.stack([start, path[0]]), colour, dash=":"),
        ]
    (points,) = minima(example.coefficients[None])
    lines += [
        Line(example.starts, "white", dash="", marker="o", marker_size=3.6, marker_edge="black"),
        Line(points.numpy(), "black", dash="", marker="x", marker_size=6),
        Line(paths[-1], colour, dash="", marker="*", marker_size=9, marker_edge="white"),
    ]
    mean = f"mean loss {example.final[name]:.2f}".replace("-", "−")
    contours = (grid[..., 0].numpy(), grid[..., 1].numpy(), heights.numpy())
    return Panel(lines, title, colour, mean, contours=contours, plane=True, edge=EDGE)


def surfaces_3d(omega: nn.Module, shown: Sequence[Example], *, alt: str, caption: str) -> Figure:
    """Draw WarpGrad on the surface as seen from θ-space through Ω (top), and gradient descent on the native surface
    (bottom); both start from the same numbers, θ0 = x0."""
    rows = [[_surface_3d(own, example) for example in shown] for own in (omega, None)]
    return panels(rows, size=(3.0 * len(shown), 6.0), alt=alt, caption=caption)


def _surface_3d(omega: nn.Module | None, example: Example) -> Panel:
    grid = _grid()
    heights = surface(grid if omega is None else omega(grid), example.coefficients).numpy()
    name, title = ("sgd_tuned", "native surface, f(x)") if omega is None else ("warp", "warped surface, f(Ω(θ))")
    drawn = example.paths[name] if omega is None else example.theta
    lifted = np.dstack([drawn, example.heights(example.paths[name]) + 0.02 * float(np.ptp(heights))])
    lines = []
    for path in lifted.swapaxes(0, 1):
        # What leaves the square would be drawn beside the surface.
        kept = path[(np.abs(path[:, :2]) <= EDGE).all(axis=1)]
        lines += [
            Line(kept, COLOURS[name]),
            Line(kept[:1], COLOURS[name], dash="", marker="o", marker_size=3),
            Line(kept[-1:], COLOURS[name], dash="", marker="*"),
        ]
    return Panel(lines, title, surface=(grid[..., 0].numpy(), grid[..., 1].numpy(), heights))


def warped_grid(omega: nn.Module, *, alt: str, caption: str) -> Figure:
    """Draw a square grid of θ's, and its image under Ω."""
    fine = torch.linspace(-EDGE, EDGE, 200)
    corners = EDGE * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
    row = []
    for title, image in (("θ", nn.Identity()), ("Ω(θ)", omega)):
        lines = [Line(corners, "#8a929b", dash="--")]
        for value in torch.linspace(-EDGE, EDGE, 25):
            across = value.expand(len(fine))
            for path, colour in (((across, fine), PALETTE[1]), ((fine, across), PALETTE[0])):
                lines.append(Line(image(torch.stack(path, -1)).numpy(), colour, width=0.7))
        row.append(Panel(lines, title, plane=True))
    return panels([row], size=(7.6, 4.2), shared=True, alt=alt, caption=caption)


def _grid() -> Tensor:
    axis = torch.linspace(-EDGE, EDGE, _SIDE)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)


SHOWN = 3
"""The number of surfaces in one figure."""


def build_page(groups: Sequence[Group], title: str) -> Page:
    """Build the page: all sections for every group or, for a search, one table."""
    config = synthetic_config(groups[0])
    if is_search(groups):
        sections = [_search(groups)]
    else:
        groups = _warped_first(groups)
        first, *sections = _story(groups[0], several=len(groups) > 1, pictures=EXAMPLES)
        sections = [first, *_against_each_other(groups), *sections]
        for group in groups[1:]:
            sections += _story(group, several=True, pictures=SHOWN)
    sizes = f"{config.test_surfaces} surfaces × {config.test_starts} starts each"
    return experiment_page(groups, title, "Synthetic experiment (App. D)", sections, sizes=sizes)


def _warped_first(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with a warp before the others: the headline is about the first.

    A warp without another beside it has the name, and so the colour, of its descents.
    """
    warped = [group for group in groups if "warp" in names(group)]
    others = [group for group in groups if "warp" not in names(group)]
    return [*(warped if len(warped) != 1 else [dataclasses.replace(warped[0], label="WarpGrad")]), *others]


def _story(group: Group, *, several: bool, pictures: int) -> list[Section]:
    """Return all sections about one group, with pictures of the first `pictures` surfaces."""
    sections = [_table(group), _curves(group)]
    if "warp" in names(group):
        sections = [_headline(group), *sections, _smoothness(group), *_pictures(group, pictures)]
    for section in sections:
        section.title = f"{section.title}: {group.label}" if several else section.title
    return sections


def methods(group: Group) -> dict[str, tuple[str, int]]:
    """Return a mapping from each column to the method whose colour it has, and its dash pattern."""
    kind, _ = descending_at_test(synthetic_config(group))
    own = ("plain", "plain_shifted", f"{kind}_tuned", "tuned_shifted")
    return {
        **{f"{other}_tuned": (name, 0) for other, name in _RULES.items()},
        **{column: (_RULES[kind], dashing) for dashing, column in enumerate(own)},
        "warp": ("WarpGrad", 0),
        "warp_matched": ("WarpGrad", 1),
    }


def _headline(group: Group) -> Section:
    # The whole of the advantage comes first, then what it is made of.
    shown = sorted(comparisons(group), key=lambda item: item.label != "shift and geometry")
    found = {item.label: advantage(group, item) for item in shown}
    raw, shift = found["shift and geometry"].mean, found["shift of the start"].mean
    share = f"{shift / raw:.0%} of it is shift" if raw > 0 else "there is no advantage"
    tiles = [
        Tile.of("Geometry, both from x0", found["geometry, from x0"], 3),
        Tile.of("Geometry, both from Ω(x0)", found["geometry, from Ω(x0)"], 3),
        Tile.of("Raw advantage, θ0 = x0", found["shift and geometry"], 3, share),
    ]
    plot = Forest(
        [ForestRow(item.label, found[item.label], methods(group)[item.worse][0]) for item in shown],
        "How much lower the loss ends through the warp",
        "loss",
        "without a warp is lower",
        "through the warp is lower",
        3,
    )
    explained = Paragraph(
        "Ω moves the point where descent starts, and bends the path from there. Only the second is geometry. So the "
        "warp is compared twice at equal starts: **matched**, WarpGrad starts at θ0 with Ω(θ0) = x0 against the same "
        "rule without a warp from x0; and **shifted**, WarpGrad starts at θ0 = x0 against that rule from Ω(x0). The "
        "geometry might only change the length of steps, so the rules with their best step sizes, chosen on "
        "validation surfaces by the table `synthetic-steps`, are controls."
    )
    words = Collapsible("The same in words", [Paragraph(found[item.label].sentence()) for item in shown])
    return Section("What is geometry, and what is not", [plot, Tiles(tiles), explained, words])


def _table(group: Group) -> Section:
    rows: list[list[Cell]] = [
        [name, Value.of(final_loss(group, key), digits=3), Value.of(fraction_reached(group, key), digits=3)]
        for key, name in names(group).items()
    ]
    without = sum(len(found["final"]["plain"]) - found["with_minimum"] for found in group.evaluations)
    columns: list[Column | str] = [
        "Method",
        Column(f"Loss after {synthetic_config(group).steps} steps", best="lowest"),
        Column("Fraction that reaches a minimum", best="highest"),
    ]
    note = Note(
        f"A minimum is a point of the square with gradient 0 and curvatures above {CURVATURE:g}; it is reached "
        f"within {RADIUS:g}. {without} surfaces without one are left out of that column."
    )
    table = Table(columns, rows, "The same surfaces and starts for every row.")
    return Section("All columns", [table, note, *([_coverage(group)] if "warp" in names(group) else [])])


def _coverage(group: Group) -> Note:
    starts = synthetic_config(group).test_starts
    metrics = [evaluation["metrics"] for evaluation in group.evaluations]
    total = sum(len(evaluation["matched"]["counts"]) * starts for evaluation in group.evaluations)
    failures = sum(own["unmatched_starts"] for own in metrics)
    shift = np.mean([own["mean_shift"] for own in metrics])
    kept = np.mean([own["orientation_kept"] for own in metrics])
    return Note(
        f"Coverage: Ω(θ0) = x0 could be solved, by Newton's method and then path following, for {total - failures} "
        f"of {total} starts ({failures} failures, left out of the matched comparison). Ω moves a start by "
        f"{shift:.2f} on average and keeps orientation (det DΩ > 0) at {100 * kept:.4g}% of the starts."
    )


def _curves(group: Group) -> Section:
    steps = np.arange(len(group.evaluations[0]["curves"]["plain"]))
    seeds = [run.seed for run in group.runs]
    series = []
    looks = methods(group)
    for key, name in names(group).items():
        method, dashing = looks[key]
        samples = [evaluation["curves"][key] for evaluation in group.evaluations]
        series.append(Series.mean(name, steps, samples, method=method, dashing=dashing, seeds=seeds))
    chart = Chart(
        series,
        x_label="step",
        y_label="mean loss on held-out surfaces",
        alt="Loss against step for every method.",
        caption="Mean loss over all held-out surfaces and starts; bands are 95 % intervals over meta-seeds, "
        "where there are four or more.",
    )
    return Section("Loss against step", [chart])


def _smoothness(group: Group) -> Section:
    known = names(group)
    levels: list[list[Cell]] = [
        [f"{known[column]}, {words}", Value.of(curvature(group, column, space), digits=2)]
        for column, space, words in MET
    ]
    gaps: list[list[Cell]] = [[item.label, Value.of(smoothness(group, item), digits=2)] for item in SMOOTHER]
    explained = Paragraph(
        "The paper says that warped surfaces are smooth. The table gives the largest curvature that a descent "
        "meets (the largest magnitude of an eigenvalue of the Hessian along its path): of f(Ω(θ)) in θ's space, "
        "which is what WarpGrad descends, and of f in x's space at the same places. An Ω that only shrinks the plane "
        "has less curvature and smooths nothing; times |det DΩ|, x's curvature is what such an Ω would leave."
    )
    return Section(
        "How smooth the surfaces are",
        [
            explained,
            Table(["Descent", "Largest curvature"], levels, "Means over the starts of every surface."),
            Table(["Paired difference", "smoother by"], gaps, "Positive where θ's space has the smaller curvature."),
        ],
    )


def _pictures(group: Group, surfaces: int) -> list[Section]:
    run = group.runs[0]
    omega, shown = redrawn(group.evaluations[0], synthetic_config(group))
    shown = shown[:surfaces]
    labels = {"sgd_tuned": "tuned gradient descent", "adam_tuned": "tuned Adam", "warp": "WarpGrad"}
    words = (
        "All start from the same x0, WarpGrad with θ0 = x0. Dotted: Ω moves the start. Solid: the descent. Tuned: with "
        "the best step size on validation surfaces. The surfaces are the held-out ones of seed "
        f"{run.seed} that have a minimum, in the order in which they were drawn, with all their starts."
    )
    figures: list[Block] = [
        descents(
            shown[begin : begin + SHOWN],
            labels,
            alt="Contours of held-out surfaces, a row each, with the descents of gradient descent, Adam and WarpGrad.",
            caption=words,
        )
        for begin in range(0, len(shown), SHOWN)
    ]
    if shown:
        figures.append(
            surfaces_3d(
                omega,
                shown[:SHOWN],
                alt="Surfaces in 3-D: WarpGrad on the warped ones above, gradient descent on the native ones below.",
                caption="The first of the surfaces above, with the same starts. Above: WarpGrad descends f(Ω(θ)). "
                "Below: gradient descent at its best step size descends f(x).",
            )
        )
    warp = warped_grid(
        omega,
        alt="A square grid and its image under Ω.",
        caption=f"Left: a square grid of θ. Right: its image under the Ω of seed {run.seed}. Dashed: the square of "
        "starts.",
    )
    return [Section("Surfaces and descents", figures), Section("What the warp does to the plane", [warp])]


def _against_each_other(groups: Sequence[Group]) -> list[Section]:
    found = [(other.label, between_groups(groups[0], other)) for other in groups[1:]]
    rows = [ForestRow(label, difference) for label, difference in found if difference is not None]
    if not rows:
        return []
    plot = Forest(
        rows,
        f"How much lower the loss ends than that of **{groups[0].label}**",
        "loss",
        f"{groups[0].label} is lower",
        "the other is lower",
        3,
    )
    sentences = [Paragraph(row.estimate.sentence()) for row in rows]
    return [
        Section(
            "The variants of WarpGrad against each other, from θ0 = x0",
            [plot, Collapsible("The same in words", sentences)],
        )
    ]


def _search(groups: Sequence[Group]) -> Section:
    warped = all("warp" in names(group) for group in groups)
    shown = HEADLINES if warped else ()
    column = "warp" if warped else "plain"
    rows: list[list[Cell]] = [
        [
            group.label,
            *(Value.of(advantage(group, item), digits=3) for item in shown),
            Value.of(final_loss(group, column), digits=3),
        ]
        for group in groups
    ]
    columns: list[Column | str] = [
        "Setting",
        *(Column(item.label, best="highest") for item in shown),
        Column("loss of WarpGrad from θ0 = x0" if warped else "loss from x0", best="lowest"),
    ]
    words = "How much lower the loss is, and the loss" if warped else "The loss"
    ranked = sorted(groups, key=lambda group: final_loss(group, column).mean)
    plot = Forest(
        [ForestRow(group.label, final_loss(group, column)) for group in ranked],
        "The loss of every setting, the lowest first",
        "loss",
        digits=3,
    )
    return Section(
        "The search",
        [
            plot,
            Paragraph(f"{words}, on validation surfaces; the preset has the chosen setting."),
            Table(columns, rows, "Over the same surfaces and starts."),
        ],
    )


def result_lines(groups: Sequence[Group]) -> Lines:
    """Return the table for the terminal: all columns of every group, or one line for every trial of a search."""
    if is_search(groups):
        return _search_lines(groups)
    rows = []
    for group in groups:
        rows += [[group.label, "", ""]] if len(groups) > 1 else []
        rows += [
            [name, final_loss(group, key).cell(), f"{fraction_reached(group, key).mean:.1%}"]
            for key, name in names(group).items()
        ]
        rows += [[f"{item.label} (loss lower by)", advantage(group, item).cell(), ""] for item in comparisons(group)]
        if "warp" in names(group):
            rows += [
                [f"{names(group)[column]}: largest curvature {words}", curvature(group, column, space).cell(), ""]
                for column, space, words in MET
            ]
            rows += [[f"largest curvature: {item.label} by", smoothness(group, item).cell(), ""] for item in SMOOTHER]
    for other in groups[1:]:
        found = between_groups(groups[0], other)
        rows += [[f"{other.label} (loss lower than {groups[0].label} by)", found.cell(), ""]] if found else []
    steps = " and ".join(dict.fromkeys(str(synthetic_config(group).steps) for group in groups))
    return [f"after {steps} steps", "loss [95 % interval]", "reached a minimum"], rows


def _search_lines(groups: Sequence[Group]) -> Lines:
    rows = []
    for group in groups:
        has = comparisons(group)
        cells = [advantage(group, item).cell() if item in has else "" for item in HEADLINES]
        rows.append([group.label, final_loss(group, "warp" if has else "plain").cell(), *cells])
    return ["setting", "loss [95 % interval]", *(item.label for item in HEADLINES)], rows

"""Figures of the continual experiment: the break-down by sub-task, and predictions as sub-tasks come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from warpgrad.experiments.continual_evaluation import LOG_LOSS, ORDERS
from warpgrad.report.figures import PALETTE, canvas, house_style, save

TRUTH, BEFORE, AFTER = "#111111", "#009e73", "#c1272d"


def breakdown(evaluations: Sequence[Mapping[str, Any]], steps_per_subtask: int) -> bytes:
    """Average log-loss of each sub-task against steps, in both orders; thin before a sub-task is learned."""
    with house_style():
        figure = canvas(9.0, 3.6)
        first: Axes | None = None
        for place, order in enumerate(ORDERS):
            axes = figure.add_subplot(1, 2, place + 1, sharey=first)
            first = first or axes
            found = [evaluation["orders"][order] for evaluation in evaluations]
            levels = 10.0 ** np.mean([one["curves"][LOG_LOSS] for one in found], axis=0)
            _breakdown_panel(axes, found[0]["steps"], levels, found[0]["order"], steps_per_subtask)
            axes.set(yscale="log", xlabel="step", title=f"order {', '.join(map(str, found[0]['order']))}")
            axes.set_ylabel("average log-loss" if place == 0 else "")
        handles = [(line, line.get_label()) for line in figure.axes[0].get_lines() if line.get_linewidth() > 1.0]
        lines, labels = zip(*sorted(handles, key=lambda pair: str(pair[1])), strict=True)
        figure.legend(lines, labels, loc="outside lower center", ncols=len(labels))
        return save(figure)


def _breakdown_panel(
    axes: Axes, steps: Sequence[int], levels: NDArray[np.float64], order: Sequence[int], steps_per_subtask: int
) -> None:
    at = np.asarray(steps)
    for stage, subtask in enumerate(order):
        begin = stage * steps_per_subtask
        colour = PALETTE[subtask % len(PALETTE)]
        axes.plot(at[at <= begin], levels[at <= begin, stage], color=colour, linewidth=0.6, alpha=0.6)
        axes.plot(at[at >= begin], levels[at >= begin, stage], color=colour, label=f"sub-task {subtask}")
        axes.axvspan(begin, begin + steps_per_subtask, color=colour, alpha=0.06, linewidth=0)


def predictions(evaluation: Mapping[str, Any]) -> bytes:
    """One held-out sine task: rows are its sub-tasks as they are learned, columns the two orders."""
    with house_style():
        subtasks = len(evaluation["orders"][ORDERS[0]]["order"])
        figure = canvas(7.2, 1.35 * subtasks)
        for column, order in enumerate(ORDERS):
            found = evaluation["orders"][order]
            kept = found["prediction"]
            for row, subtask in enumerate(found["order"]):
                axes = figure.add_subplot(subtasks, 2, 2 * row + column + 1)
                axes.axvspan(*kept["intervals"][subtask], color="#8a929b", alpha=0.16, linewidth=0)
                axes.plot(kept["x"], kept["target"], color=TRUTH, linewidth=1.2)
                axes.plot(kept["x"], kept["outputs"][row], color=BEFORE, linewidth=1.2, linestyle="--")
                axes.plot(kept["x"], kept["outputs"][row + 1], color=AFTER, linewidth=1.2)
                if row == 0:
                    axes.set_title(f"order {', '.join(map(str, found['order']))}")
        return save(figure)

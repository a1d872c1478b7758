"""Accuracy against adaptation steps, with the steps that meta-training saw marked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpgrad.experiments.base import Group
from warpgrad.report import Series, appearances, canvas, house_style, save

_GREY = "#59616b"


def mean_curve(evaluation: dict[str, dict[str, list[float]]]) -> list[float]:
    """The curve of a run, averaged over held-out tasks."""
    mean: list[float] = np.mean(list(evaluation["curves"].values()), axis=0).tolist()
    return mean


def learning_curves(groups: Sequence[Group]) -> bytes:
    """One curve per row, with a band where there are several meta-seeds; a vertical line at every trained horizon."""
    series = [
        Series.mean(group.label, group.evaluations[0]["tested_at"], [mean_curve(item) for item in group.evaluations])
        for group in groups
    ]
    trained = sorted(
        {item["trained_steps"] for group in groups for item in group.evaluations if item["trained_steps"] is not None}
    )
    looks = appearances([one.name for one in series])
    with house_style():
        figure = canvas(7.2, 4.4)
        axes = figure.add_subplot()
        for one in series:
            look = looks[one.name]
            axes.plot(one.x, one.centre, color=look.colour, linestyle=look.dash, label=one.name.replace("$", r"\$"))
            if one.low is not None and one.high is not None:
                axes.fill_between(one.x, one.low, one.high, color=look.colour, alpha=0.16, linewidth=0)
        # Two meta-seeds have very wide intervals: the lines decide what is shown, bands are cut off.
        lowest, highest = (function([function(one.centre) for one in series]) for function in (min, max))
        room = max(5.0, 0.1 * (highest - lowest))
        axes.set_ylim(max(0.0, lowest - room), min(100.0, highest + room))
        for steps in trained:
            axes.axvline(steps, color=_GREY, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1.5)
            axes.annotate(
                f"K = {steps} in meta-training", (steps, 0.0), xycoords=("data", "axes fraction"), xytext=(4, 4),
                textcoords="offset points", fontsize=8, color="#3d454e",
            )  # fmt: skip
        axes.set(xlabel="step of adaptation", ylabel="accuracy on held-out tasks, %")
        axes.margins(x=0.02)
        figure.legend(loc="outside lower center", ncols=min(len(series), 4), handlelength=2.2, columnspacing=1.6)
        return save(figure)

"""Every metric that runs recorded, against their steps: one chart per metric, one curve per group of runs.

Scores on held-out tasks are also drawn against processor time, so that methods of unequal cost can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpgrad.report.charts import Chart, Series
from warpgrad.report.runs import Run
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM
from warpgrad.statistics.formatting import count

SCORED = ("validation/", "test/")
"""Prefixes of the metrics of held-out tasks that are scored during meta-training."""
DIAGNOSTICS = ("lr/", "gradient_norm/")
"""Prefixes of the metrics that show how meta-training is going rather than what it has achieved."""
CROWD = 8
"""With more methods than this, a chart does not show their single runs."""
_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
"""Units of time in seconds; a chart has the largest of which its longest run takes two."""
_NAMED = 3
"""A remark names at most this many curves, and counts more."""
_POINTS = 300
"""Longer curves are averaged down to at most this many points: more would be noise on the page."""


def is_number(value: Any) -> bool:
    """Return whether a metric can be drawn; a Boolean is not a measurement."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs by method, in the order in which the methods first occur."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.method, []).append(run)
    return grouped


def metric_charts(
    groups: Mapping[str, Sequence[Run]], *, diagnostics: bool = False, first: Collection[str] = ()
) -> list[Chart]:
    """Return one chart per numeric metric, in the order in which the runs record them but times last, with a curve per
    group; `first` are the groups that are shown at first, empty for all.

    Scores taken during meta-training (`validation/…`, `test/…`) get a second chart, against processor time. Step sizes
    and norms of meta-gradients are only drawn with `diagnostics`.
    """
    names = dict.fromkeys(
        name
        for runs in groups.values()
        for run in runs
        for row in run.metrics
        for name, value in row.items()
        if name not in ("step", "validation_seconds", "test_seconds") and is_number(value)
        if diagnostics or not name.startswith(DIAGNOSTICS)
    )
    charts = []
    for name in sorted(names, key=lambda name: name.endswith("seconds")):
        charts.append(_chart(name, groups, first=first))
        if name.startswith(SCORED):
            charts.append(_chart(name, groups, first=first, against_time=True))
    return [chart for chart in charts if chart is not None]


def _chart(
    metric: str, groups: Mapping[str, Sequence[Run]], *, first: Collection[str], against_time: bool = False
) -> Chart | None:
    series: list[Series] = []
    sizes: list[int] = []
    remarks: dict[str, list[str]] = {}
    for method, runs in groups.items():
        own = [run for run in runs if not against_time or _processor_seconds(run)]
        own = [run for run in own if _track(metric, run)]
        if not own:
            continue
        # The single runs of many methods would make the page many megabytes large.
        seeds = [run.seed for run in own] if len(groups) <= CROWD else []
        tracks = [_track(metric, run) for run in own]
        times = [_processor_seconds(run) for run in own] if against_time else []
        curve, remark = _curve(method, tracks, times, seeds)
        for text in remark:
            remarks.setdefault(text, []).append(method)
        if curve is not None:
            series.append(curve)
            sizes.append(len(tracks))
    if not series:
        return None
    axis = "meta-steps"
    if against_time:
        longest = max(float(np.nanmax(one.x)) for one in series)
        size, unit = next((size, unit) for size, unit in _UNITS if longest >= 2 * size or size == 1)
        series = [replace(one, x=one.x / size) for one in series]
        axis = f"processor {unit}"
    names = [one.name for one in series]
    caption = [_band(sizes)]
    for text, whose in remarks.items():
        of = ", ".join(whose) if len(whose) <= _NAMED else f"{len(whose)} of {len(names)} curves"
        caption.append(f"{text}." if whose == names else f"{of}: {text}.")
    return Chart(
        series,
        x_label=axis,
        y_label="",
        title=f"{metric} against time" if against_time else metric,
        log_y=_spans_decades(series),
        alt=f"{metric} against {axis} for {', '.join(names)}.",
        caption=" ".join(filter(None, caption)),
        first=first,
    )


def _band(sizes: Sequence[int]) -> str:
    """Describe the line and the band, which depend on the number of runs of each method; a run alone needs no words."""
    few, many = min(sizes), max(sizes)
    if many == 1:
        return "" if len(sizes) == 1 else "One run per method."
    how_many = f"{few} to {many} runs" if few < many else count(many, "run")
    if few >= SEEDS_FOR_A_CLAIM:
        return f"Median and inter-quartile range of {how_many} per method."
    if many < SEEDS_FOR_A_CLAIM:
        return f"Median and whole range of {how_many} per method."
    return (
        f"Median of {how_many} per method, with the inter-quartile range (whole range below {SEEDS_FOR_A_CLAIM} runs)."
    )


def _curve(
    method: str, tracks: Sequence[dict[float, float]], times: Sequence[dict[float, float]], seeds: Sequence[int | str]
) -> tuple[Series | None, list[str]]:
    """Return the curve over the steps that all runs share, and remarks about it for the caption.

    If `times` (step -> processor time of each run) are given, it is drawn against their mean.
    """
    steps, samples = _shared(tracks)
    remarks: list[str] = []
    if any(len(track) > len(steps) for track in tracks):
        remarks.append(f"Only the {count(len(steps), 'step')} that all runs recorded")
    if not len(steps):
        return None, remarks
    lost = int(np.isnan(samples).sum())
    if lost:
        remarks.append(f"{count(lost, 'value')} not finite, left as gaps")
    width = math.ceil(len(steps) / _POINTS)
    if width > 1:
        remarks.append(f"Each point is the mean of {width} steps")
    places = np.array([[own.get(step, math.nan) for step in steps] for own in times] or [steps.tolist()])
    x, y = _averaged(places, width).mean(axis=0), _averaged(samples, width)
    return Series.quartiles(method, x, y, seeds=seeds), remarks


def recorded(runs: Sequence[Run], metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps at which all of the runs recorded a metric, and its values [runs, steps]."""
    return _shared([_track(metric, run) for run in runs])


def _shared(tracks: Sequence[dict[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    steps = sorted(set(tracks[0]).intersection(*tracks))
    return np.array(steps, np.float64), np.array([[track[step] for step in steps] for track in tracks])


def _processor_seconds(run: Run) -> dict[float, float]:
    """Return step -> processor seconds of meta-training up to that step; empty if they were not recorded."""
    total, found = 0.0, {}
    for row in run.metrics:
        total += row.get("cpu_seconds", 0.0)
        found[float(row["step"])] = total
    return found if total else {}


def _track(metric: str, run: Run) -> dict[float, float]:
    """Return step -> metric; a value that is not finite becomes NaN, so that it shows as a gap."""
    return {
        float(row["step"]): float(row[metric]) if math.isfinite(row[metric]) else math.nan
        for row in run.metrics
        if is_number(row.get(metric))
    }


def _averaged(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Average every `width` neighbours along the last axis; the last group may be smaller."""
    starts = np.arange(0, values.shape[1], width)
    sizes = np.diff(np.append(starts, values.shape[1]))
    means: NDArray[np.float64] = np.add.reduceat(values, starts, axis=1) / sizes
    return means


def _spans_decades(series: Sequence[Series]) -> bool:
    """Return whether a logarithmic axis is needed: all values are positive and span more than a factor of 100."""
    values = np.concatenate([one.centre for one in series])
    values = values[np.isfinite(values)]
    return len(values) > 0 and bool(values.min() > 0) and bool(values.max() > 100 * values.min())

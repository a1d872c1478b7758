"""What the synthetic experiment claims, as paired differences over the same surfaces and starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpgrad.experiments import comparison_page
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import by_seed
from warpgrad.experiments.synthetic.config import InnerRule, SyntheticConfig, descending_at_test, tuned_lr
from warpgrad.statistics.estimates import Difference, Estimate, mean_interval, paired_difference

RULES: Mapping[InnerRule, str] = {"sgd": "gradient descent", "momentum": "momentum", "adam": "Adam"}
"""The names of the rules in tables."""


@dataclass(frozen=True)
class Comparison:
    """How much lower `better` ends than `worse`; positive in favour of `better`."""

    label: str
    worse: str
    better: str


@dataclass(frozen=True)
class Smoothness(Comparison):
    """How much smaller the largest curvature met by `better` in θ's space is than that of `worse` in `space`."""

    space: str


EQUAL_STARTS = (
    Comparison("geometry, from x0", "plain", "warp_matched"),
    Comparison("geometry, from Ω(x0)", "plain_shifted", "warp"),
    Comparison("shift of the start", "plain", "plain_shifted"),
    Comparison("shift and geometry", "plain", "warp"),
    Comparison("geometry, from Ω(x0), against the tuned step", "tuned_shifted", "warp"),
)
TUNED = tuple(
    comparison
    for rule, name in RULES.items()
    for comparison in (
        Comparison(f"geometry, from x0, against tuned {name}", f"{rule}_tuned", "warp_matched"),
        Comparison(f"shift and geometry, against tuned {name}", f"{rule}_tuned", "warp"),
    )
)
COMPARISONS = (*EQUAL_STARTS, *TUNED)
HEADLINES = EQUAL_STARTS[:4]

SMOOTHER = (
    Smoothness("θ's space below x's, the same path from x0", "warp_matched", "warp_matched", "x"),
    Smoothness("θ's space below x's, the same path from Ω(x0)", "warp", "warp", "x"),
    Smoothness("θ's space below x's scaled alike, from x0", "warp_matched", "warp_matched", "scaled"),
    Smoothness("θ's space below x's scaled alike, from Ω(x0)", "warp", "warp", "scaled"),
    Smoothness("θ's space below plain descent's, both from x0", "plain", "warp_matched", "x"),
    Smoothness("θ's space below plain descent's, both from Ω(x0)", "plain_shifted", "warp", "x"),
)


MET = (
    *((column, "x", "in x") for column in ("plain", "plain_shifted")),
    *(
        (column, space, words)
        for column in ("warp_matched", "warp")
        for space, words in (("theta", "in θ"), ("x", "in x"), ("scaled", "in x, times |det DΩ|"))
    ),
)
"""(column, space, title) of every largest curvature that is shown."""


def synthetic_config(group: Group) -> SyntheticConfig:
    return comparison_page.config_of(SyntheticConfig, group.runs[0])


def names(group: Group) -> dict[str, str]:
    """Return the titles of the columns of a group; the tuned rule is left out where it is the plain one."""
    config = synthetic_config(group)
    kind, lr = descending_at_test(config)
    rule, best = RULES[kind], tuned_lr(config, kind)
    found = {
        "plain": f"{rule} {lr:g} from x0",
        "warp_matched": "WarpGrad from Ω(θ0) = x0",
        "plain_shifted": f"{rule} {lr:g} from Ω(x0)",
        "warp": "WarpGrad from θ0 = x0",
        "tuned_shifted": f"{rule} {best:g} (tuned) from Ω(x0)",
        **{f"{key}_tuned": f"{name} {tuned_lr(config, key):g} (tuned) from x0" for key, name in RULES.items()},
    }
    if lr == best and (kind != "adam" or config.adam_eps == SyntheticConfig.adam_eps):
        found["plain"] = f"{rule} {lr:g} (tuned) from x0"
        found["plain_shifted"] = found.pop("tuned_shifted")
        del found[f"{kind}_tuned"]
    return {key: name for key, name in found.items() if key in group.evaluations[0]["final"]}


def comparisons(group: Group) -> list[Comparison]:
    """Return the comparisons whose columns the group has."""
    known = names(group)
    return [item for item in COMPARISONS if item.worse in known and item.better in known]


def scores(group: Group, column: str, *, matched_only: bool) -> dict[int, dict[int, float]]:
    """Return seed -> surface -> mean final loss over its starts, or with `matched_only` over the matched ones."""
    return by_seed(group, lambda found: _present((found["matched"] if matched_only else found)["final"][column]))


def advantage(group: Group, comparison: Comparison) -> Difference:
    """Return the paired difference of final losses, worse − better."""
    matched_only = comparison.better == "warp_matched"
    return paired_difference(
        scores(group, comparison.worse, matched_only=matched_only),
        scores(group, comparison.better, matched_only=matched_only),
        names=(names(group)[comparison.worse], names(group)[comparison.better]),
    )


def between_groups(first: Group, second: Group) -> Difference | None:
    """Return how much lower WarpGrad of `second` ends than that of `first` from θ0 = x0; None unless both were tested
    on the same surfaces."""
    keys = ("form", "split", "steps", "test_surfaces", "test_starts")
    ours, theirs = synthetic_config(first), synthetic_config(second)
    seeds = [{run.seed for run in group.runs} for group in (first, second)]
    alike = seeds[0] == seeds[1] and all(getattr(ours, key) == getattr(theirs, key) for key in keys)
    if not alike or not all("warp" in names(group) for group in (first, second)):
        return None
    return paired_difference(
        scores(first, "warp", matched_only=False),
        scores(second, "warp", matched_only=False),
        names=(first.label, second.label),
    )


def final_loss(group: Group, column: str) -> Estimate:
    return mean_interval(scores(group, column, matched_only=False), name=names(group)[column])


def fraction_reached(group: Group, column: str) -> Estimate:
    """Estimate the fraction of starts that end at a minimum, over surfaces that have one."""
    values = by_seed(group, lambda evaluation: dict(enumerate(evaluation["reached"][column])))
    return mean_interval(values, name=names(group)[column])


def curvatures(group: Group, column: str, space: str) -> dict[int, dict[int, float]]:
    """Return seed -> surface -> the largest curvature that descents meet, as a mean over starts; for columns that begin
    at x0, over the starts that could be matched."""
    return by_seed(group, lambda evaluation: _present(evaluation["curvature"][column][space]))


def curvature(group: Group, column: str, space: str) -> Estimate:
    return mean_interval(curvatures(group, column, space), name=f"{names(group)[column]}, {space}")


def smoothness(group: Group, item: Smoothness) -> Difference:
    """Return the paired difference of largest curvatures, which is positive if θ's space is the smoother one."""
    return paired_difference(
        curvatures(group, item.worse, item.space),
        curvatures(group, item.better, "theta"),
        names=(f"{names(group)[item.worse]} in x", f"{names(group)[item.better]} in θ"),
    )


def _present(values: Sequence[float | None]) -> dict[int, float]:
    """Return surface -> value for the values that are not None."""
    return {place: value for place, value in enumerate(values) if value is not None}


def is_search(groups: Sequence[Group]) -> bool:
    """Return whether the groups are the trials of a search, which were validated rather than tested."""
    return len(groups) > 1 and all(synthetic_config(group).split == "validation" for group in groups)

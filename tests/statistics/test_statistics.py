"""The one statistics function: exact on hand-made data, well calibrated on simulated data, strict about input."""

import math

import numpy as np
import pytest

from warpgrad.errors import WarpgradError
from warpgrad.statistics.estimates import mean_interval, paired_difference
from warpgrad.statistics.formatting import count, duration, number, raised, shared_digits
from warpgrad.statistics.intervals import bootstrap_means, t_quantile
from warpgrad.statistics.scores import scores_of

# Student's t


@pytest.mark.parametrize(
    ("degrees", "table"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_t_quantile_agrees_with_the_printed_table(degrees, table):
    assert t_quantile(0.975, degrees) == pytest.approx(table, abs=5e-4)


@pytest.mark.parametrize("probability", [0.55, 0.9, 0.975, 0.995, 0.9999])
def test_t_quantile_agrees_with_the_closed_forms_for_one_and_two_degrees(probability):
    u = 2 * probability - 1
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * u / 2), rel=1e-10)
    assert t_quantile(probability, 2) == pytest.approx(u * math.sqrt(2 / (1 - u * u)), rel=1e-10)


def test_t_quantile_is_odd_and_tends_to_the_normal_one():
    assert t_quantile(0.25, 7) == -t_quantile(0.75, 7)
    assert t_quantile(0.5, 3) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.975, 10**7) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize(("probability", "degrees", "match"), [(1.0, 3, "between 0 and 1"), (0.9, 0, "at least 1")])
def test_impossible_quantiles_are_refused(probability, degrees, match):
    with pytest.raises(WarpgradError, match=match):
        t_quantile(probability, degrees)


# Exact values


def test_the_headline_is_students_interval_over_seed_means():
    """Differences per seed 1, 2, 3, 6: mean 3, sd √(14/3), half-width t₃ · sd/2."""
    second = np.arange(8.0).reshape(4, 2)
    first = second + np.array([[0.0, 2.0], [2.0, 2.0], [1.0, 5.0], [6.0, 6.0]])
    result = paired_difference(first, second, names=("Warp", "Plain"))
    half = 3.182446305284263 * math.sqrt(14 / 3) / 2
    assert result.mean == 3.0
    assert result.seed_means == (1.0, 2.0, 3.0, 6.0)
    assert (result.interval.low, result.interval.high) == pytest.approx((3 - half, 3 + half), rel=1e-9)
    assert (result.first_mean, result.second_mean) == (6.5, 3.5)
    assert (result.seeds, result.tasks, result.tasks_per_seed) == (4, 8, (2, 2, 2, 2))
    assert result.clustered_by == "meta-seed"
    assert not result.indicative


def test_starts_are_averaged_within_tasks_and_tasks_within_seeds():
    """Seeds with more tasks, and tasks with more starts, weigh no more than others."""
    scores = {"s": {"a": [0.0, 0.0, 0.0, 4.0], "b": 3.0}, "t": {"c": 10.0}}
    result = mean_interval(scores)
    assert result.seed_means == (2.0, 10.0)
    assert result.mean == 6.0
    assert result.tasks_per_seed == (2, 1)


def test_pairing_is_by_name_and_not_by_order():
    first = {0: {"x": 5.0, "y": 1.0}, 1: {"x": 2.0, "z": 7.0}}
    second = {1: {"z": 6.0, "x": 1.0}, 0: {"y": 0.0, "x": 4.0}}
    result = paired_difference(first, second)
    assert result.seed_means == (1.0, 1.0)
    assert result.interval == type(result.interval)(1.0, 1.0)


def test_arrays_and_nests_of_the_same_scores_agree_to_the_last_digit():
    random = np.random.default_rng(3)
    first, second = random.normal(size=(2, 4, 5, 3))
    nested = [
        {seed: {task: list(cube[seed, task]) for task in range(5)} for seed in range(4)} for cube in (first, second)
    ]
    assert paired_difference(first, second) == paired_difference(*nested)


def test_swapping_the_methods_flips_the_sign():
    random = np.random.default_rng(4)
    first, second = random.normal(size=(2, 6, 7))
    forth, back = paired_difference(first, second), paired_difference(second, first)
    assert back.mean == pytest.approx(-forth.mean, abs=1e-15)
    assert back.interval.low == pytest.approx(-forth.interval.high, abs=1e-14)


def test_pairing_removes_what_both_methods_share():
    """Tasks of very different difficulty and a constant advantage: paired, the interval has no width at all."""
    hard = 100 * np.random.default_rng(5).integers(0, 50, size=(5, 8)).astype(float)
    result = paired_difference(hard + 2.0, hard)
    assert (result.interval.low, result.interval.high) == (2.0, 2.0)
    assert (result.bootstrap.low, result.bootstrap.high) == (2.0, 2.0)
    assert mean_interval(hard).interval.high - mean_interval(hard).interval.low > 100


# The bootstrap


def test_the_bootstrap_is_a_function_of_its_key():
    values = np.random.default_rng(6).normal(size=(5, 4))
    assert mean_interval(values, key=1).bootstrap == mean_interval(values, key=1).bootstrap
    assert mean_interval(values, key=1).bootstrap != mean_interval(values, key=2).bootstrap


def test_the_bootstrap_knows_the_spread_of_each_level():
    """Its variance is that of drawing seeds plus that of drawing tasks within seeds plus that of drawing starts:
    V = var(seed means)/S + mean var(task means)/(S·T) + mean var(starts)/(S·T·R), all with divisor n."""
    values = np.random.default_rng(7).normal(size=(6, 4, 3)) + np.arange(6.0)[:, None, None]
    task_means = values.mean(2)
    spread = (task_means.mean(1).var() / 6 + task_means.var(axis=1).mean() / 24 + values.var(axis=2).mean() / 72) ** 0.5
    means = bootstrap_means(scores_of(values, "values"), 40_000, key=0)
    assert means.std() == pytest.approx(spread, rel=0.015)
    assert means.mean() == pytest.approx(values.mean(), abs=0.015 * spread)


def test_the_bootstrap_of_ragged_scores_stays_within_them():
    """Padding never enters: all scores are 7, so every resampled mean is."""
    ragged = {0: {"a": 7.0}, 1: {"a": [7.0, 7.0], "b": 7.0, "c": [7.0] * 5}, 2: {"a": 7.0, "b": [7.0] * 3}}
    bootstrap = mean_interval(ragged).bootstrap
    assert (bootstrap.low, bootstrap.high) == pytest.approx((7.0, 7.0), abs=1e-12)


# Calibration


def _simulated(seeds, random):
    """No true difference; seeds and tasks vary alike, 20 tasks per seed: what a meta-learning study looks like."""
    shared = 5 * random.normal(size=(seeds, 20))
    noise = random.normal(size=(seeds, 1)) + random.normal(size=(seeds, 20))
    return shared + noise, shared


@pytest.mark.parametrize("seeds", [5, 10])
def test_the_headline_interval_covers_the_truth_and_the_unclustered_one_does_not(seeds):
    random = np.random.default_rng(seeds)
    repeats, hits, naive_hits = 1500, 0, 0
    for _ in range(repeats):
        first, second = _simulated(seeds, random)
        hits += 0.0 in paired_difference(first, second, resamples=1).interval
        flat = (first - second).ravel()
        naive_hits += abs(flat.mean()) <= 1.96 * flat.std(ddof=1) / math.sqrt(flat.size)
    assert 0.92 <= hits / repeats <= 0.98
    assert naive_hits / repeats < 0.6


def test_with_five_seeds_the_bootstrap_falls_short_which_is_why_it_is_not_the_headline():
    random = np.random.default_rng(11)
    repeats = 400
    hits = sum(0.0 in paired_difference(*_simulated(5, random), resamples=300, key=k).bootstrap for k in range(repeats))
    assert 0.75 <= hits / repeats < 0.92


# Few seeds


def test_one_seed_is_clustered_by_task_and_indicative():
    result = mean_interval(np.array([[1.0, 2.0, 3.0, 6.0]]))
    half = 3.182446305284263 * math.sqrt(14 / 3) / 2
    assert result.clustered_by == "task"
    assert result.indicative
    assert (result.interval.low, result.interval.high) == pytest.approx((3 - half, 3 + half), rel=1e-9)


def test_one_seed_and_one_task_are_clustered_by_start():
    result = mean_interval(np.array([[[1.0, 3.0]]]))
    assert result.clustered_by == "start"
    assert result.interval.bounded


def test_one_single_value_has_an_unbounded_interval_and_says_so():
    result = paired_difference([[3.0]], [[1.0]], names=("Warp", "Plain"))
    assert not result.interval.bounded
    assert not result.bootstrap.bounded
    assert result.cell(1) == "+2.0 [no interval] indicative"
    assert result.sentence(digits=1) == (
        "Indicative only (1 meta-seed): Warp and Plain cannot be told apart: mean difference +2.0 "
        "(no interval from a single value; 1 meta-seed × 1 held-out task, paired)."
    )


@pytest.mark.parametrize(("seeds", "indicative"), [(1, True), (2, True), (3, True), (4, False), (10, False)])
def test_fewer_than_four_seeds_are_called_indicative(seeds, indicative):
    result = mean_interval(np.random.default_rng(0).normal(size=(seeds, 3)))
    assert result.indicative is indicative
    assert ("indicative" in result.cell()) is indicative
    assert result.sentence().startswith("Indicative only") is indicative


# Words


def test_sentences_say_what_the_interval_allows():
    base = np.zeros((4, 2))
    ahead = paired_difference(base + np.array([[1.0], [2.0], [1.0], [2.0]]), base, names=("Warp-Leap", "Leap"))
    assert ahead.sentence(unit="points", digits=1) == (
        "Warp-Leap exceeds Leap by 1.5 points (95 % interval, clustered by meta-seed: +0.6 to +2.4; "
        "4 meta-seeds × 2 held-out tasks, paired)."
    )
    assert ahead.cell(1) == "+1.5 [+0.6 to +2.4]"
    behind = paired_difference(base, base + np.array([[1.0], [2.0], [1.0], [2.0]]), names=("Warp-Leap", "Leap"))
    assert behind.sentence(digits=1).startswith("Warp-Leap falls below Leap by 1.5 (")
    level = paired_difference(base + np.array([[1.0], [-2.0], [1.0], [-1.0]]), base, names=("Warp-Leap", "Leap"))
    assert level.sentence(digits=1).startswith("Warp-Leap and Leap cannot be told apart: mean difference −0.2 (")
    plain = mean_interval({0: {"a": 1.0}, 1: {"a": 2.0, "b": 2.0}, 2: {"a": 1.0}, 3: {"a": 2.0}})
    assert plain.sentence(digits=2) == (
        "Mean 1.50 (95 % interval, clustered by meta-seed: 0.58 to 2.42; 4 meta-seeds × 1 to 2 held-out tasks)."
    )


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (83.44, 1, "83.4"),
        (-0.004, 2, "0.00"),
        (-1.26, 1, "−1.3"),
        (1234567.0, None, "1.235·10⁶"),
        (-2.5e-05, None, "−2.5·10⁻⁵"),
        (0.0, None, "0"),
        (42, None, "42"),
        (math.inf, 1, "∞"),
        (math.nan, None, "not a number"),
    ],
)
def test_numbers_are_written_for_people(value, digits, text):
    assert number(value, digits) == text


def test_numbers_within_a_text_are_written_for_people():
    text = "step size 3e-05, penalty 1.5e+06, 1e-3 at commit 4e05-7e and v2.1e-05x"
    assert raised(text) == "step size 3·10⁻⁵, penalty 1.5·10⁶, 1·10⁻³ at commit 4e05-7e and v2.1e-05x"


def test_durations_counts_and_shared_digits():
    assert [duration(s) for s in (0.25, 59.94, 61, 3599.7, 7500, 90_000)] == [
        "0.2 s",
        "59.9 s",
        "1 min 01 s",
        "1 h 00 min",
        "2 h 05 min",
        "1 d 01 h",
    ]
    assert (count(1, "task"), count(2, "task")) == ("1 task", "2 tasks")
    assert [shared_digits(0.8, 0.0123), shared_digits(83.4, -2), shared_digits(1e-7), shared_digits(4321.0)] == [
        4,
        2,
        None,
        0,
    ]


# What is refused


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        ({0: {"a": 1.0}}, {1: {"a": 1.0}}, r"meta-seeds differ \(0 only in Warp, 1 only in Plain\)"),
        ({0: {"a": 1.0}}, {0: {"b": 1.0}}, r"held-out tasks for meta-seed 0 differ \('a' only in Warp"),
        ({0: {"a": [1.0, 2.0]}}, {0: {"a": 1.0}}, r"meta-seed 0, task 'a' has 2 and 1 starts"),
        (np.ones((4, 3)), np.ones((5, 3)), r"meta-seeds differ \(4 only in Plain\)"),
        (np.ones((4, 3)), np.ones((4, 9)), r"3 only in Plain, 4 only in Plain.* and 2 more"),
        ([[1.0, math.nan]], [[1.0, 1.0]], r"Warp, meta-seed 0, task 1: the score is nan"),
        ([[1.0]], {0: {0: math.inf}}, r"Plain, meta-seed 0, task 0: the score is inf"),
        (np.ones(4), np.ones(4), r"Warp has shape \(4,\)"),
        (np.ones((0, 3)), np.ones((0, 3)), r"Warp has shape \(0, 3\)"),
        ([[1.0, 2.0], [1.0]], [[1.0]], r"Warp is not an array of numbers"),
        ({}, {}, r"Warp has no meta-seeds"),
        ({0: {}}, {0: {}}, r"Warp has no tasks for meta-seed 0"),
        ({0: [1.0]}, {0: [1.0]}, r"Warp holds a list for meta-seed 0"),
        ({0: {"a": "high"}}, {0: {"a": 1.0}}, r"'high' is not a number"),
        ({0: {"a": []}}, {0: {"a": []}}, r"one score, or a list of one per start"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused_by_name(first, second, match):
    with pytest.raises(WarpgradError, match=match):
        paired_difference(first, second, names=("Warp", "Plain"))


@pytest.mark.parametrize(("options", "match"), [({"level": 95}, "confidence level"), ({"resamples": 0}, "at least 1")])
def test_impossible_options_are_refused(options, match):
    with pytest.raises(WarpgradError, match=match):
        mean_interval(np.ones((2, 2)), **options)

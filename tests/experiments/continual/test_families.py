"""Families of continual tasks: mixtures of sines (App. J) and characters of alphabets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from warpgrad.experiments.continual.families import (
    AlphabetSequences,
    SineMixtures,
    SineSubTask,
    alphabet_parts,
    draw_sine_mixture,
    half_squared_error,
    sine_mixture,
)
from warpgrad.keys import generator


def test_the_mixture_of_sines_by_hand() -> None:
    x = torch.tensor([-5.0, -1.3, 0.0, 4.2], dtype=torch.float64)
    a1, b1, a2, b2, offset = coefficients = (2.5, 0.4, 0.7, 2.9, -1.5)
    expected = []
    for value in x.tolist():
        alpha = 1.0 / (1.0 + math.exp(-(value + offset)))
        expected.append(alpha * a1 * math.sin(value - b1) + (1.0 - alpha) * a2 * math.sin(value - b2))
    np.testing.assert_allclose(sine_mixture(x.numpy(), coefficients), expected, rtol=1e-12)


def test_the_loss_is_half_the_mean_squared_error() -> None:
    assert float(half_squared_error(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))) == pytest.approx(5.0 / 4.0)


def test_coefficients_fill_their_ranges() -> None:
    drawn = torch.tensor([draw_sine_mixture(seed) for seed in range(2000)], dtype=torch.float64)
    low = torch.tensor([0.1, 0.0, 0.1, 0.0, -5.0], dtype=torch.float64)
    high = torch.tensor([5.0, math.pi, 5.0, math.pi, 5.0], dtype=torch.float64)
    fractions = (drawn - low) / (high - low)
    assert 0.0 <= float(fractions.min()) < 0.01
    assert 0.99 < float(fractions.max()) <= 1.0
    assert (fractions.mean(dim=0) - 0.5).abs().max() < 0.03
    assert len({tuple(row) for row in drawn.tolist()}) == 2000


def test_sub_tasks_are_the_five_parts_of_the_interval_and_share_one_function() -> None:
    task = SineMixtures(5, 10, steps_per_subtask=20, batch_size=5).sample(3)
    coefficients = draw_sine_mixture(3)
    for k in range(100):
        low = -5.0 + 2.0 * (k // 20)
        inputs, targets = task.adapt_batch(k)
        assert inputs.shape == (5, 1)
        assert low <= float(inputs.min()) <= float(inputs.max()) <= low + 2.0
        assert targets.dtype == inputs.dtype == torch.float32
        np.testing.assert_allclose(targets, sine_mixture(inputs.double().numpy(), coefficients), atol=1e-5)
    tested = torch.cat([inputs for inputs, _ in task.test_batches()])[:, 0]
    torch.testing.assert_close(tested, torch.linspace(-4.9, 4.9, 50))
    first = task.subtasks[0]
    assert isinstance(first, SineSubTask)
    assert (first.low, first.high) == (-5.0, -3.0)


def test_what_theta0_is_judged_on_has_the_mean_of_the_family() -> None:
    """E a = 2.55 and E sin(x − b) = −2 cos(x) / π, whatever the mixture."""
    sines = SineMixtures(5, 10)
    for place in range(5):
        draws = [sines.unknown(place, generator(seed)) for seed in range(200)]
        x, y = (torch.cat(column) for column in zip(*draws, strict=True))
        assert -5 + 2 * place <= x.min() < x.max() <= -3 + 2 * place
        expected = -2.55 * 2 / math.pi * x.cos()
        assert abs((y - expected).mean()) < 4 * (y - expected).std() / len(y) ** 0.5


# Characters of alphabets


@pytest.fixture(scope="module")
def parts() -> dict[str, list[object]]:
    return dict(alphabet_parts(0, 4, 6, ""))  # type: ignore[arg-type]


def test_no_alphabet_is_in_two_parts(parts: dict[str, list[object]]) -> None:
    names = [alphabet.name for part in parts.values() for alphabet in part]  # type: ignore[attr-defined]
    assert len(names) == len(set(names)) == 4
    assert all(parts.values())


def test_class_incremental_sequences_give_every_character_a_label_of_its_own(parts: dict[str, list[object]]) -> None:
    family = AlphabetSequences(parts["train"], 2, "class", steps_per_subtask=3, batch_size=4)  # type: ignore[arg-type]
    task = family.sample(11)
    labels = [set(targets.tolist()) for _, targets in task.test_batches()]
    assert [len(own) for own in labels] == [2, 2, 2]
    assert set.union(*labels) == set(range(6))
    for k in range(9):
        inputs, targets = task.adapt_batch(k)
        assert inputs.shape == (4, 196)
        assert set(targets.tolist()) <= labels[k // 3]
    assert labels != [set(targets.tolist()) for _, targets in family.sample(12).test_batches()]


def test_domain_incremental_sequences_count_from_0_in_each_sub_task(parts: dict[str, list[object]]) -> None:
    task = AlphabetSequences(parts["train"], 3, "domain", steps_per_subtask=3, batch_size=4).sample(1)  # type: ignore[arg-type]
    assert [sorted(set(targets.tolist())) for _, targets in task.test_batches()] == [[0, 1, 2]] * 2


def test_drawings_that_judge_are_never_adapted_to(parts: dict[str, list[object]]) -> None:
    task = AlphabetSequences(parts["train"], 2, "class", steps_per_subtask=1, batch_size=400).sample(5)  # type: ignore[arg-type]
    for k in range(3):
        seen = {tuple(row) for row in task.adapt_batch(k)[0].tolist()}
        judged = {tuple(row) for row in task.meta_batch(k)[0][k].tolist()}
        assert len(seen) == 30, "two characters by fifteen hands"
        assert len(judged) == 10, "the same two by five other hands"
        assert not seen & judged

"""Alphabets as tasks: what is drawn, from where, and that nothing is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.data import AlphabetProtocol, Alphabets, ImageStore, prepare_drawn, to_float
from warpgrad.data.tasks.alphabets import AlphabetTask, alphabet_tasks
from warpgrad.data.transform import AffineRange, random_affine
from warpgrad.errors import WarpgradError
from warpgrad.keys import fold

PROTOCOL = AlphabetProtocol(characters=6, train_drawings=4, test_drawings=2, held_out=2)
STILL = AffineRange(scale=(1.0, 1.0), rotate=(0.0, 0.0), shift=0.0)


def tiny_store(folder: Path, alphabets: int = 5) -> ImageStore:
    """Alphabets of six to eight characters, six drawings of each."""
    return prepare_drawn(folder / "alphabets", alphabets=alphabets, characters=(6, 8), drawers=6)


@pytest.fixture(scope="module")
def alphabets(tmp_path_factory) -> Alphabets:
    return Alphabets(tiny_store(tmp_path_factory.mktemp("store")), 0, PROTOCOL)


@pytest.fixture
def data(alphabets):
    return alphabets[alphabets.split(2).train[0]]


def same(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def places(images: torch.Tensor, among: torch.Tensor) -> list[int]:
    """Where in `among` each untransformed image of a batch comes from."""
    known = to_float(among).flatten(1)
    distances = torch.cdist(images.flatten(1), known, compute_mode="donot_use_mm_for_euclid_dist")
    assert float(distances.min(dim=1).values.max()) < 1e-4
    return distances.argmin(dim=1).tolist()


def test_batches_are_a_function_of_seed_step_and_role(data):
    task = AlphabetTask(data, batch_size=5, seed=3)
    again = AlphabetTask(data, batch_size=5, seed=3)
    task.adapt_batch(7), task.meta_batch(0)
    assert same(task.adapt_batch(2), again.adapt_batch(2))
    assert same(task.meta_batch(2), again.meta_batch(2))
    batches = [task.adapt_batch(0), task.adapt_batch(1), task.meta_batch(0), task.with_seed(4).adapt_batch(0)]
    for place, first in enumerate(batches):
        for second in batches[:place]:
            assert not torch.equal(first[0], second[0])
    assert same(task.with_seed(4).with_seed(3).adapt_batch(0), batches[0])


def test_a_batch_is_the_drawings_it_says_transformed(data):
    """With no transformation the images are training drawings under their own labels; the real ones are the same
    drawings put through `random_affine`, float from bytes."""
    still = AlphabetTask(data, batch_size=64, seed=1, ranges=STILL)
    images, labels = still.adapt_batch(0)
    assert images.shape == (64, 1, 28, 28)
    assert images.dtype is torch.float32
    assert data.train_images.dtype is torch.uint8
    chosen = places(images, data.train_images)
    assert torch.equal(labels, data.train_labels[chosen])
    moved, moved_labels = AlphabetTask(data, batch_size=64, seed=1).adapt_batch(0)
    assert torch.equal(moved_labels, labels)
    torch.testing.assert_close(moved, random_affine(data.train_images[chosen], fold(1, 0, "adapt")))


def test_batches_are_drawn_with_replacement_and_without_balance(data):
    still = AlphabetTask(data, batch_size=24, ranges=STILL)
    chosen = [places(still.adapt_batch(k)[0], data.train_images) for k in range(60)]
    assert any(len(set(batch)) < len(batch) for batch in chosen)
    assert {place for batch in chosen for place in batch} == set(range(24))
    counts = torch.stack([torch.bincount(still.adapt_batch(k)[1], minlength=6) for k in range(60)])
    assert int(counts.min()) < 4 < int(counts.max())
    assert counts.float().mean(0).tolist() == pytest.approx([4.0] * 6, abs=0.8)


def test_both_losses_see_all_drawings_unless_some_are_kept_for_the_meta_loss(data):
    def seen(task, role):
        return {place for k in range(40) for place in places(getattr(task, role)(k)[0], data.train_images)}

    shared = AlphabetTask(data, batch_size=24, ranges=STILL)
    assert seen(shared, "adapt_batch") == seen(shared, "meta_batch") == set(range(24))
    kept = AlphabetTask(data, batch_size=24, meta_drawings=1, ranges=STILL)
    held = {place for place in range(24) if place % 4 == 3}
    assert seen(kept, "meta_batch") == held
    assert seen(kept, "adapt_batch") == set(range(24)) - held
    with pytest.raises(WarpgradError, match="meta_drawings=4"):
        AlphabetTask(data, batch_size=24, meta_drawings=4)
    with pytest.raises(WarpgradError, match="batch_size=0"):
        AlphabetTask(data, batch_size=0)


def test_the_test_batch_is_every_test_drawing_under_a_transformation_of_its_own(data):
    (first,) = AlphabetTask(data, batch_size=5, seed=1).test_batches()
    (second,) = AlphabetTask(data, batch_size=9, seed=2).test_batches()
    assert same(first, second)
    assert torch.equal(first[1], data.test_labels)
    torch.testing.assert_close(first[0], random_affine(data.test_images, fold(data.name, "test")))
    assert not torch.equal(first[0], to_float(data.test_images))


def test_loss_and_scores_are_those_of_the_negative_log_likelihood(data):
    task = AlphabetTask(data, batch_size=5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 6))
    learner = wg.Learner(model, warp=())
    forward = learner.bind(learner.start(0), learner.buffers(), training=False)
    images, labels = batch = task.adapt_batch(0)
    expected = F.cross_entropy(model(images), labels).detach()
    torch.testing.assert_close(task.loss(forward, batch), expected)
    torch.testing.assert_close(task.meta_loss(forward, batch), expected)
    scores = task.metrics(forward, batch)
    assert scores["loss"] == pytest.approx(float(expected))
    assert scores["accuracy"] == pytest.approx(float((model(images).argmax(1) == labels).float().mean()))


def test_a_meta_batch_cycles_through_the_alphabets_with_new_draws(alphabets):
    names = alphabets.split(2).train
    family = alphabet_tasks(alphabets, names, batch_size=4)
    batch = family.meta_batch(5, 5)
    assert sorted(task.name for task in batch[:2]) == sorted(names)
    assert sorted(task.name for task in batch[2:4]) == sorted(names)
    by_name = [task for task in batch if task.name == batch[0].name]
    assert len({task.seed for task in batch}) == 5
    assert not torch.equal(by_name[0].adapt_batch(0)[0], by_name[1].adapt_batch(0)[0])
    again = family.meta_batch(5, 5)
    assert all(same(a.adapt_batch(1), b.adapt_batch(1)) for a, b in zip(batch, again, strict=True))
    orders = {tuple(task.name for task in family.meta_batch(seed, 2)) for seed in range(20)}
    assert len(orders) == 2

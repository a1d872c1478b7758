"""Episodes: which images are in them, that a seed is all that decides it, and how they are normalised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.few_shot_store import few_shot_store
from warpgrad.data import ClassImages, write
from warpgrad.data.tasks.episodes import SAMPLE, EpisodeShape, FewShotImageFamily, FewShotImages
from warpgrad.errors import WarpgradError

SHAPE = EpisodeShape(ways=3, shots=2, query=4)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Image j of class i has the single bytes (i, j) in its corner: every image can be told from every other."""
    names = {"train": ["a", "b", "c", "d"], "validation": ["e", "f", "g"], "test": ["h", "i", "j"]}
    every = [name for split in names.values() for name in split]

    def made():
        for place, name in enumerate(every):
            pixels = np.zeros((9 + place, 1, 4, 4), np.uint8)
            pixels[:, 0, 0, 0] = place
            pixels[:, 0, 0, 1] = np.arange(9 + place)
            yield ClassImages(name, "", pixels)

    path = tmp_path_factory.mktemp("numbered") / "store"
    return write(path, made(), name="numbered", shape=(1, 4, 4), source="test", licence="", splits=names)


def identities(family: FewShotImageFamily, images: torch.Tensor) -> list[tuple[int, int]]:
    """(class, image) of every image, read back through the normalisation."""
    mean, deviation = (value.double() for value in family.source.images.statistics)
    pixels = (images.double() * deviation[:, None, None] + mean[:, None, None]) * 255
    return [(round(float(one[0, 0, 0])), round(float(one[0, 0, 1]))) for one in pixels]


@pytest.mark.parametrize("preload", [2**30, 0])
def test_classes_and_images_are_drawn_without_replacement(numbered, preload):
    images = FewShotImages(numbered, preload_bytes=preload)
    for split, members in (("train", {0, 1, 2, 3}), ("test", {7, 8, 9})):
        family = FewShotImageFamily(images, split, SHAPE, dtype=torch.float64)
        seen = set()
        for seed in range(30):
            task = family.sample(seed)
            support, query = identities(family, task.support[0]), identities(family, task.query[0])
            assert task.support[1].tolist() == [0, 0, 1, 1, 2, 2]
            assert task.query[1].tolist() == [0] * 4 + [1] * 4 + [2] * 4
            assert len(set(support + query)) == 18
            for label in range(3):
                of_class = {support[2 * label + shot][0] for shot in range(2)}
                of_class |= {query[4 * label + shot][0] for shot in range(4)}
                assert len(of_class) == 1
                assert numbered.classes[of_class.pop()] == task.classes[label]
            assert {place for place, _ in support} <= members
            seen |= set(support + query)
        assert seen == {(place, image) for place in members for image in range(9 + place)}


def test_in_memory_and_from_the_file_are_the_same_episodes(numbered):
    pairs = [FewShotImageFamily(FewShotImages(numbered, preload_bytes=size), "train", SHAPE) for size in (2**30, 0)]
    for seed in range(5):
        first, second = (family.sample(seed) for family in pairs)
        assert torch.equal(first.support[0], second.support[0])
        assert torch.equal(first.query[0], second.query[0])


def test_an_episode_is_a_function_of_split_and_seed(numbered):
    images = FewShotImages(numbered)
    train, again = (FewShotImageFamily(images, "train", SHAPE) for _ in range(2))
    train.sample(3)
    assert torch.equal(train.sample(7).query[0], again.sample(7).query[0])
    assert not torch.equal(train.sample(7).query[0], train.sample(8).query[0])
    held_out = FewShotImageFamily(images, "test", SHAPE)
    listed = list(held_out.tasks(3))
    assert [task.name for task in listed] == ["test episode 0", "test episode 1", "test episode 2"]
    assert torch.equal(listed[2].support[0], list(held_out.tasks(5))[2].support[0])
    first, second = train.meta_batch(5, 2)
    assert not torch.equal(first.query[0], second.query[0])


def test_every_step_sees_the_support_set_and_every_judgement_the_query_set(numbered):
    task = FewShotImageFamily(FewShotImages(numbered), "train", SHAPE).sample(0)
    assert task.adapt_batch(0) is task.adapt_batch(4) is task.support
    assert task.meta_batch(0) is task.meta_batch(4) is task.query
    assert list(task.test_batches()) == [task.query]
    assert task.one_loss


def test_images_are_normalised_by_the_training_split(tmp_path):
    store = few_shot_store(tmp_path / "store", images=SAMPLE)
    images = FewShotImages(store)
    pixels = torch.cat([store.images(index) for index in store.split("train")]).double() / 255
    mean, deviation = images.statistics
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)), rtol=1e-12, atol=0)
    torch.testing.assert_close(deviation, pixels.std((0, 2, 3), correction=0), rtol=1e-10, atol=0)
    task = FewShotImageFamily(images, "train", EpisodeShape(6, 10, 40)).sample(0)
    everything = torch.cat([task.support[0], task.query[0]])
    torch.testing.assert_close(everything.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(everything.std((0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-5)
    assert everything.dtype == torch.float32
    assert task.support[0].is_contiguous(memory_format=torch.channels_last)


def test_statistics_use_an_even_sample_where_classes_are_large(tmp_path):
    levels = np.arange(2 * SAMPLE, dtype=np.uint8)[:, None, None, None].repeat(2, 2).repeat(2, 3)
    names = {"train": ["a"], "validation": ["b"], "test": ["c"]}
    store = write(
        tmp_path / "levels", [ClassImages(name, "", levels) for name in "abc"],
        name="levels", shape=(1, 2, 2), source="test", licence="", splits=names,
    )  # fmt: skip
    mean, _ = FewShotImages(store).statistics
    assert float(mean) == pytest.approx(np.arange(0, 2 * SAMPLE, 2).mean() / 255, rel=1e-12)


def test_a_channel_that_never_changes_stays_finite(tmp_path):
    white = np.full((6, 1, 4, 4), 255, np.uint8)
    names = {"train": ["a", "b"], "validation": ["a"], "test": ["a"]}
    store = write(
        tmp_path / "white", [ClassImages(name, "", white) for name in "ab"],
        name="white", shape=(1, 4, 4), source="test", licence="", splits=names,
    )  # fmt: skip
    task = FewShotImageFamily(FewShotImages(store), "train", EpisodeShape(2, 1, 2)).sample(0)
    assert torch.equal(task.query[0], torch.zeros(4, 1, 4, 4))


def test_rotations_are_classes_of_their_own(numbered):
    images = FewShotImages(numbered)
    shape = EpisodeShape(ways=12, shots=1, query=2)
    family = FewShotImageFamily(images, "test", shape, rotations=True, dtype=torch.float64)
    assert family.classes == 12
    task = family.sample(0)
    assert len(set(task.classes)) == 12
    mean, deviation = images.statistics
    for label, name in enumerate(task.classes):
        turns = int(name.partition(" turned ")[2].rstrip("°") or 0) // 90
        upright = torch.rot90(task.support[0][label : label + 1], -turns, dims=(2, 3))
        corner = round(float((upright[0, 0, 0, 0] * deviation[0] + mean[0]) * 255))
        assert numbered.classes[corner] == name.partition(" ")[0]


def test_flips_mirror_some_images_and_keep_the_draws(tmp_path):
    images = FewShotImages(few_shot_store(tmp_path / "store"))
    plain = FewShotImageFamily(images, "train", EpisodeShape(2, 2, 10)).sample(1)
    flipped = FewShotImageFamily(images, "train", EpisodeShape(2, 2, 10), flips=True).sample(1)
    again = FewShotImageFamily(images, "train", EpisodeShape(2, 2, 10), flips=True).sample(1)
    assert torch.equal(flipped.query[0], again.query[0])
    same = [torch.equal(one, other) for one, other in zip(flipped.query[0][:10], plain.query[0][:10], strict=True)]
    mirrored = [
        torch.equal(one.flip(2), other) for one, other in zip(flipped.query[0][:10], plain.query[0][:10], strict=True)
    ]
    assert all(one != other for one, other in zip(same, mirrored, strict=True))
    assert any(same)
    assert any(mirrored)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((5, 1, 2), {}, "split 'test' of numbered has 3 classes, too few for 5 ways"),
        ((3, 8, 9), {}, "class 'h' of numbered \\(test\\) has 16 images, too few for 8 shots and 9 query.*train_shots"),
        ((13, 1, 2), {"rotations": True}, "has 12 classes, too few for 13 ways"),
    ],
)
def test_what_the_data_cannot_give_is_refused(numbered, shape, options, words):
    with pytest.raises(WarpgradError, match=words):
        FewShotImageFamily(FewShotImages(numbered), "test", EpisodeShape(*shape), **options)


@pytest.mark.parametrize(("shape", "words"), [((1, 1, 1), "ways=1"), ((2, 0, 1), "shots=0"), ((2, 1, 0), "query=0")])
def test_episodes_of_nothing_are_refused(shape, words):
    with pytest.raises(WarpgradError, match=words):
        EpisodeShape(*shape)


def test_an_unknown_split_is_named(numbered):
    with pytest.raises(WarpgradError, match="no split 'night'"):
        FewShotImageFamily(FewShotImages(numbered), "night", SHAPE)

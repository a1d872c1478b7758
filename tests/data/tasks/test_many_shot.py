"""Many-shot tasks: which images they hold, what their batches are, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import warpgrad.data.tasks.many_shot as many_shot
from warpgrad.data import ClassImages, ImageStore, write
from warpgrad.data.prepared import open_prepared, prepared
from warpgrad.data.tasks.episodes import FewShotImages
from warpgrad.data.tasks.many_shot import ManyShotFamily, ManyShotShape
from warpgrad.errors import WarpgradError
from warpgrad.experiments.multi_shot.config import PRESETS

SHAPE = ManyShotShape(ways=3, shots=9, test=4, batch_size=20)
SPLITS = ("train", "validation", "test")


def marked_store(folder: Path, *, classes: int = 5, images: int = 12, size: int = 4) -> ImageStore:
    """Every image says what it is: red is its class, green its place in the class, blue is noise. Class c of each
    split has c images more than the first."""
    noise = np.random.default_rng(0)

    def image_classes():
        for index in range(len(SPLITS) * classes):
            count = images + index % classes
            pixels = noise.integers(0, 256, (count, 3, size, size), dtype=np.uint8)
            pixels[:, 0] = index
            pixels[:, 1] = np.arange(count)[:, None, None]
            yield ClassImages(f"class{index:02d}", "", pixels)

    splits = {
        split: [f"class{place * classes + index:02d}" for index in range(classes)] for place, split in enumerate(SPLITS)
    }
    return write(
        folder / "marked", image_classes(), name="marked", shape=(3, size, size), source="a test", licence="none",
        splits=splits,
    )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ImageStore:
    return marked_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def images(store) -> FewShotImages:
    return FewShotImages(store)


@pytest.fixture(scope="module")
def family(images) -> ManyShotFamily:
    return ManyShotFamily(images, "test", SHAPE)


def read_back(images: FewShotImages, batch) -> list[tuple[int, int]]:
    """(class in the store, place in the class) of every image of a batch."""
    mean, deviation = images.statistics
    pixels = (batch[0].double() * deviation[:, None, None] + mean[:, None, None]) * 255
    return [(round(float(image[0, 0, 0])), round(float(image[1, 0, 0]))) for image in pixels]


def held(task, chosen) -> list[tuple[int, int]]:
    """The same for images that a task holds."""
    classes = [task.source.classes[place] for place in task.places]
    return [(classes[label], image) for label, image in chosen.tolist()]


def test_classes_and_images_are_drawn_without_replacement_and_kept_apart(family):
    for seed in range(5):
        task = family.sample(seed)
        adapt, test = held(task, task.adapt_images), held(task, task.test_images)
        assert len(set(task.places)) == 3
        assert len(set(adapt)) == len(adapt)
        assert len(set(test)) == len(test) == 3 * 4
        assert not set(adapt) & set(test)
        # As many as there are: a class of 12 leaves 8 besides the 4 of the test, all others the 9 that are asked for.
        counts = {index: sum(owner == index for owner, _ in adapt) for index, _ in adapt}
        assert counts == {index: 8 if index == 10 else 9 for index in counts}


def test_a_task_is_a_function_of_its_seed_and_its_split(family, images):
    first, again, other = family.sample(3), family.sample(3), family.sample(4)
    assert held(first, first.adapt_images) == held(again, again.adapt_images)
    assert held(first, first.test_images) == held(again, again.test_images)
    assert held(first, first.adapt_images) != held(other, other.adapt_images)
    assert list(family.tasks(5))[2].classes == list(family.tasks(3))[2].classes
    assert {len({task.classes for task in family.tasks(8)}), len(set(first.classes))} != {1}
    trained = ManyShotFamily(images, "train", SHAPE).sample(3)
    assert all(name < "class05" for name in trained.classes)
    assert all(name >= "class10" for name in first.classes)


def test_a_batch_holds_the_images_it_says_with_their_labels(family, images):
    task = family.sample(1)
    allowed = set(held(task, task.adapt_images))
    classes = [task.source.classes[place] for place in task.places]
    for k in range(3):
        batch = task.adapt_batch(k)
        found = read_back(images, batch)
        assert len(found) == 20
        assert set(found) <= allowed
        assert [classes[label] for label in batch[1].tolist()] == [owner for owner, _ in found]
        # Not sorted by class: the order of the draw was restored.
        assert batch[1].tolist() != sorted(batch[1].tolist())
        again = task.adapt_batch(k)
        assert torch.equal(batch[0], again[0])
        assert torch.equal(batch[1], again[1])
        assert read_back(images, task.meta_batch(k)) != found
    assert read_back(images, task.adapt_batch(0)) != read_back(images, task.adapt_batch(1))


def test_batches_are_normalised_channels_last_floats_of_the_bytes_on_disk(family, images, store):
    task = family.sample(1)
    pixels, _ = task.adapt_batch(0)
    assert pixels.dtype == torch.float32
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    mean, deviation = (value[:, None, None] for value in images.statistics)
    for image, (owner, place) in zip(pixels, read_back(images, (pixels, None)), strict=True):
        expected = (store.images(owner, [place])[0].double() / 255 - mean) / deviation
        torch.testing.assert_close(image.double(), expected, rtol=1e-5, atol=1e-5)


def test_another_seed_changes_the_batches_and_nothing_else(family, images):
    task = family.sample(1)
    other = task.with_seed(99)
    assert read_back(images, task.adapt_batch(0)) != read_back(images, other.adapt_batch(0))
    tested = [[read_back(images, batch) for batch in one.test_batches()] for one in (task, other)]
    assert tested[0] == tested[1]
    assert task.classes == other.classes


def test_test_batches_hold_every_held_out_image_once_in_equal_parts(family, images, monkeypatch):
    task = family.sample(2)
    (whole,) = task.test_batches()
    assert sorted(read_back(images, whole)) == sorted(held(task, task.test_images))
    for most, sizes in ((5, [4, 4, 4]), (7, [6, 6]), (1, [1] * 12)):
        monkeypatch.setattr(many_shot, "TEST_BATCH", most)
        batches = list(task.test_batches())
        assert [len(labels) for _, labels in batches] == sizes
        assert torch.equal(torch.cat([labels for _, labels in batches]), whole[1])
        assert torch.equal(torch.cat([pixels for pixels, _ in batches]), whole[0])


def test_images_kept_for_the_meta_loss_are_never_adapted_to(images):
    task = ManyShotFamily(images, "test", ManyShotShape(3, 9, 4, 20, meta_images=3)).sample(1)
    adapt, meta, test = (set(held(task, chosen)) for chosen in (task.adapt_images, task.meta_images, task.test_images))
    assert len(meta) == 9
    assert not adapt & meta
    assert not test & (adapt | meta)
    assert set(read_back(images, task.meta_batch(0))) <= meta
    assert set(read_back(images, task.adapt_batch(0))) <= adapt


def test_a_split_that_stays_on_disk_gives_the_same_batches(store, monkeypatch):
    reads, read = [], type(store).images
    monkeypatch.setattr(type(store), "images", lambda *given: reads.append(given) or read(*given))
    batches, asked = [], []
    for options in ({}, {"preload_bytes": 0}):
        task = ManyShotFamily(FewShotImages(store, **options), "test", SHAPE).sample(1)
        task.adapt_batch(0)
        reads.clear()
        batches.append(task.adapt_batch(4))
        asked.append(bool(reads))
    assert asked == [False, True]
    for first, second in zip(*batches, strict=True):
        assert torch.equal(first, second)


def test_scores_are_those_of_the_predictions(family):
    task = family.sample(0)
    batch = task.adapt_batch(0)

    def guess(pixels):
        return torch.tensor([2.0, 0.0, 0.0]).expand(len(pixels), 3)

    labels = batch[1]
    expected = torch.where(labels == 0, 0.0, 2.0).mean() + torch.log(torch.exp(torch.tensor(2.0)) + 2) - 2
    assert float(task.loss(guess, batch)) == pytest.approx(float(expected), rel=1e-6)
    scores = task.metrics(guess, batch)
    assert scores["accuracy"] == pytest.approx(float((labels == 0).float().mean()))
    assert scores["loss"] == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ways": 1}, "ways=1"),
        ({"shots": 0}, "shots=0"),
        ({"test": 0}, "test=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"meta_images": -1}, "meta_images=-1"),
        ({"shots": 5, "meta_images": 5}, "meta_images=5 of 5 shots"),
        ({"ways": 6}, "has 5 classes, too few for 6 ways"),
        ({"ways": 3, "test": 12}, "'class10' of marked .test. has 12 images; 12 test images"),
        ({"ways": 3, "test": 4, "meta_images": 8}, "8 for the meta-loss leave none"),
    ],
)
def test_shapes_that_cannot_be_had_are_refused_by_name(images, settings, words):
    with pytest.raises(WarpgradError, match=words):
        ManyShotFamily(images, "test", ManyShotShape(**settings))


@pytest.mark.real_data
def test_real_fc100_gives_the_tasks_of_the_small_preset():
    """60/20/20 classes of 600 images: 500 to adapt to and 50 others to test on."""
    if prepared("fc100") is None:
        pytest.skip("FC100 is not prepared here: warpgrad data prepare fc100")
    images = FewShotImages(open_prepared("fc100"))
    for split, classes in (("train", 60), ("validation", 20), ("test", 20)):
        family = ManyShotFamily(images, split, PRESETS["small"].train_shape)
        assert (len(family.source.classes), set(family.source.counts)) == (classes, {600})
        task = family.sample(0)
        assert (len(task.adapt_images), len(task.test_images), len(set(task.classes))) == (5000, 500, 10)
        assert task.adapt_batch(0)[0].shape == (32, 3, 32, 32)
        assert [len(labels) for _, labels in task.test_batches()] == [100] * 5

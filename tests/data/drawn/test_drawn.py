"""The drawn alphabets, and alphabets as tasks: determinism, looks in numbers, splits."""

from __future__ import annotations

import functools
import hashlib
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import warpgrad.data
from warpgrad.data import (
    AlphabetProtocol,
    Alphabets,
    ClassImages,
    ImageStore,
    montage,
    open_store,
    prepare_drawn,
    split_alphabets,
    usable_alphabets,
    write,
)
from warpgrad.data.drawn.glyphs import Random, Stroke, curve, retraces
from warpgrad.data.drawn.writers import rasterise
from warpgrad.data.writing import LOCK, partial_of
from warpgrad.errors import WarpgradError
from warpgrad.experiments.omniglot import methods as omniglot_data
from warpgrad.io import locked

REAL = {"ink": 0.083, "width": 1.51, "within_between": 0.932, "neighbour": 0.472}
"""Omniglot at 28×28, its 46 alphabets of 20 characters or more; `test_data_omniglot` measures it again."""


def figures(store: ImageStore) -> dict[str, float]:
    """Means over alphabets: ink per pixel; stroke width (2 · ink / length of the outline); mean pixel distance
    within a character over that between characters; accuracy of the nearest of 15 drawings for the other 5."""
    alphabets = Alphabets(store, seed=0)
    rows = []
    for name in usable_alphabets(store):
        data = alphabets[name]
        train, test = data.train_images.float() / 255, data.test_images.float() / 255
        padded = torch.nn.functional.pad(train, (1, 1, 1, 1))
        down = padded[..., 1:, :-1] - padded[..., :-1, :-1]
        right = padded[..., :-1, 1:] - padded[..., :-1, :-1]
        outline = (down**2 + right**2).sqrt().sum(dim=(1, 2, 3))
        flat = train.flatten(1)
        distance = torch.cdist(flat, flat)
        same = data.train_labels[:, None] == data.train_labels
        other = same & ~torch.eye(len(flat), dtype=torch.bool)
        nearest = torch.cdist(test.flatten(1), flat).argmin(dim=1)
        rows.append(
            {
                "ink": float(train.mean()),
                "width": float((2 * train.sum(dim=(1, 2, 3)) / outline).mean()),
                "within_between": float(distance[other].mean() / distance[~same].mean()),
                "neighbour": float((data.train_labels[nearest] == data.test_labels).float().mean()),
            }
        )
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> ImageStore:
    return prepare_drawn(tmp_path_factory.mktemp("drawn") / "store", alphabets=16, characters=(18, 26))


def test_the_bytes_are_fixed_by_the_seed(tmp_path):
    small = {"alphabets": 2, "characters": (2, 3), "drawers": 4}
    first = prepare_drawn(tmp_path / "a", seed=3, **small)
    again = prepare_drawn(tmp_path / "b", seed=3, **small)
    other = prepare_drawn(tmp_path / "c", seed=4, **small)
    assert first.header.sha256 == again.header.sha256 != other.header.sha256
    assert first.header.sha256 == "ddc66fefc7b064853762f44dba472bd783520d9d9875159f3db2793c2965b83f"


def test_an_alphabet_does_not_depend_on_how_many_there_are(tmp_path):
    few = prepare_drawn(tmp_path / "few", alphabets=1, characters=(3, 3), drawers=2)
    many = prepare_drawn(tmp_path / "many", alphabets=2, characters=(3, 3), drawers=2)
    for index in range(3):
        assert torch.equal(few.images(index), many.images(index))


def test_shape_counts_names_and_polarity(drawn):
    members = drawn.members()
    assert drawn.shape == (1, 28, 28)
    assert list(members) == [f"Drawn_{number:02d}" for number in range(1, 17)]
    sizes = {len(classes) for classes in members.values()}
    assert sizes <= set(range(18, 27))
    assert len(sizes) > 1
    assert all(drawn.count(index) == 20 for index in range(len(drawn)))
    everything = torch.cat([drawn.images(index) for index in range(len(drawn))])
    assert everything.flatten(1).max(dim=1).values.min() > 128, "every drawing has ink"
    assert float((everything == 0).float().mean()) > 0.5, "paper is 0"
    assert len(everything.unique()) == 17, "antialiased: the grey levels of 4×4 fine pixels"
    drawn.verify()


def test_it_is_never_called_by_the_name_of_the_real_thing(drawn):
    assert "omniglot" not in (drawn.path / "header.json").read_text().lower()


def test_drawings_of_a_character_differ_and_characters_can_be_told_apart(drawn):
    for classes in drawn.members().values():
        means = torch.stack([drawn.images(index).float().mean(dim=0).flatten() for index in classes])
        gap = torch.cdist(means, means) + 1e9 * torch.eye(len(means))
        assert float(gap.min()) > 0
    for index in range(0, len(drawn), 7):
        flat = drawn.images(index).float().flatten(1)
        gap = torch.cdist(flat, flat) + 1e9 * torch.eye(len(flat))
        assert float(gap.min()) > 100


def test_it_stands_in_for_real_handwriting(drawn):
    """In ink, stroke width, spread within and between characters, and in how hard a task is for pixel neighbours."""
    found = figures(drawn)
    assert found["ink"] == pytest.approx(REAL["ink"], rel=0.15)
    assert found["width"] == pytest.approx(REAL["width"], rel=0.05)
    assert found["within_between"] == pytest.approx(REAL["within_between"], abs=0.02)
    assert found["neighbour"] == pytest.approx(REAL["neighbour"], abs=0.1)


def test_sizes_that_make_no_data_set_are_refused(tmp_path):
    for wrong in ({"alphabets": 0}, {"characters": (5, 4)}, {"drawers": 0}, {"size": 4}):
        with pytest.raises(WarpgradError, match="cannot draw"):
            prepare_drawn(tmp_path / "none", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_draws_have_the_moments_they_promise():
    draws = Random("test", 1)
    uniform, bell = draws.uniform(-1.0, 3.0, (40_000,)), draws.bell(2.0, (40_000,))
    assert uniform.min() >= -1.0
    assert uniform.max() < 3.0
    assert uniform.mean() == pytest.approx(1.0, abs=5 * 4 / np.sqrt(12 * 40_000))
    assert bell.mean() == pytest.approx(0.0, abs=5 * 2 / 200)
    assert bell.std() == pytest.approx(2.0, rel=0.02)
    assert np.abs(bell).max() <= 4 * np.sqrt(3)
    counts = np.bincount([draws.weighted([1.0, 0.0, 3.0]) for _ in range(4000)], minlength=3)
    assert counts[1] == 0
    assert counts[2] / 4000 == pytest.approx(0.75, abs=5 * np.sqrt(0.75 * 0.25 / 4000))
    assert {draws.integer(2, 4) for _ in range(200)} == {2, 3, 4}


def test_curves_pass_through_their_points_straight_or_round():
    points = np.array([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]])
    for roundness in (0.0, 0.5):
        assert np.array_equal(curve(points, np.array([roundness]))[0, ::32], points[0])
    straight = curve(points, np.array([0.0]))[0]
    assert (straight[:32, 1] == 0).all()
    assert (straight[32:, 0] == 1).all()
    # Catmull-Rom half way along the first piece: (p0 + p1)/2 + (t0 − t1)/8, t0 = (½, 0), t1 = (½, ½).
    assert curve(points, np.array([0.5]))[0, 16] == pytest.approx([0.5, -0.0625])


def test_a_stroke_over_old_ink_is_noticed():
    down = Stroke(np.array([[0.0, -0.5], [0.0, 0.0], [0.0, 0.5]]), 0.0)
    across = Stroke(np.array([[-0.5, 0.0], [0.0, 0.0], [0.5, 0.0]]), 0.0)
    back = Stroke(np.array([[0.0, -0.5], [0.0, 0.5], [0.0, -0.5]]), 0.0)
    assert not retraces(down, ())
    assert not retraces(across, (down,))
    assert retraces(down, (across, down))
    assert retraces(back, ())


def test_strokes_are_rasterised_as_counted_by_hand():
    """A nib of radius ½ at the middle of a pixel covers, of its 16 fine pixels, the 13 within 2 of their centre, less
    those beyond the pixel's border."""
    image = rasterise(np.array([[[2.5, 1.5]]]), np.array([0.5]), 4)[0]
    # The fine centre is (10, 6), fine pixel (2, 2) of pixel (2, 1): offsets within 2 reach row and column 0..4.
    expected = np.zeros((4, 4), dtype=np.uint8)
    expected[1, 2] = (11 * 255 + 8) // 16
    expected[2, 2] = expected[1, 3] = (1 * 255 + 8) // 16
    assert np.array_equal(image, expected)
    assert not rasterise(np.array([[[-3.0, 2.0], [9.0, 2.0]]]), np.array([0.5]), 4).any(), "off the page is no ink"


def test_a_montage_shows_dark_ink_on_light_paper(drawn):
    page = montage(drawn, [0, 5], drawings=3, zoom=2, gap=1)
    assert page.size == ((3 * 29 + 1) * 2, (2 * 29 + 1) * 2)
    pixels = np.asarray(page)
    shown = pixels[(1 + 29) * 2 : (30 + 28) * 2 : 2, (1 + 58) * 2 : (59 + 28) * 2 : 2]
    assert np.array_equal(shown, 255 - drawn.images(5)[2, 0].numpy())
    with pytest.raises(WarpgradError, match="at least one class"):
        montage(drawn, [])


# Alphabets as tasks.

PROTOCOL = AlphabetProtocol(characters=20, held_out=3)


def test_splits_are_disjoint_and_take_all_usable_alphabets(drawn):
    usable = usable_alphabets(drawn)
    assert usable == tuple(sorted(name for name, classes in drawn.members().items() if len(classes) >= 20))
    assert 8 <= len(usable) < 16, "the set has alphabets that are too small"
    for tasks in range(1, len(usable) - 2):
        split = split_alphabets(drawn, 0, tasks, PROTOCOL)
        assert (len(split.train), len(split.test)) == (tasks, 3)
        assert sorted(split.train + split.validation + split.test) == sorted(usable)


def test_held_out_alphabets_depend_on_the_seed_alone_and_tasks_nest(drawn):
    few, many = split_alphabets(drawn, 0, 2, PROTOCOL), split_alphabets(drawn, 0, 5, PROTOCOL)
    assert few.test == many.test
    assert many.train[:2] == few.train
    assert few == split_alphabets(open_store(drawn.path), 0, 2, PROTOCOL)
    assert len({split_alphabets(drawn, seed, 2, PROTOCOL).test for seed in range(10)}) > 5


def test_a_split_that_cannot_be_made_says_what_can(drawn):
    usable = len(usable_alphabets(drawn))
    with pytest.raises(WarpgradError, match=f"1 to {usable - 3} meta-training tasks, not {usable - 2}"):
        split_alphabets(drawn, 0, usable - 2, PROTOCOL)
    with pytest.raises(WarpgradError, match="not 0"):
        split_alphabets(drawn, 0, 0, PROTOCOL)
    with pytest.raises(WarpgradError, match="too few to hold out 50"):
        split_alphabets(drawn, 0, 1, AlphabetProtocol(held_out=50))
    with pytest.raises(WarpgradError, match="at least 1"):
        AlphabetProtocol(characters=0)


def test_the_data_of_an_alphabet(drawn):
    name = usable_alphabets(drawn)[0]
    alphabets = Alphabets(drawn, seed=1)
    data = alphabets[name]
    assert data is alphabets[name], "read once"
    assert data.train_images.shape == (300, 1, 28, 28)
    assert data.test_images.shape == (100, 1, 28, 28)
    assert data.train_images.dtype is torch.uint8
    assert data.train_labels.bincount().tolist() == [15] * 20
    assert data.test_labels.bincount().tolist() == [5] * 20
    assert len(set(data.characters)) == 20
    for label, character in enumerate(data.characters):
        assert character.startswith(f"{name}/")
        there = {image.numpy().tobytes() for image in drawn.images(drawn.classes.index(character))}
        train = {image.numpy().tobytes() for image in data.train_images[data.train_labels == label]}
        test = {image.numpy().tobytes() for image in data.test_images[data.test_labels == label]}
        assert train | test == there, "all 20 drawings are used"
        assert not train & test


def test_data_repeat_by_seed_and_differ_between_seeds(drawn):
    name = max(drawn.members().items(), key=lambda item: len(item[1]))[0]
    first, again, other = (Alphabets(drawn, seed)[name] for seed in (0, 0, 1))
    assert first.characters == again.characters
    assert torch.equal(first.train_images, again.train_images)
    assert torch.equal(first.test_images, again.test_images)
    assert first.characters != other.characters


def _tiny(path: Path, order: list[int]) -> ImageStore:
    """Three alphabets of two characters of four drawings, each image a shade of its own, stored in any order."""
    classes = [
        ClassImages(
            f"{group}/{character}",
            group,
            np.stack([np.full((1, 2, 2), 40 * a + 20 * c + d, dtype=np.uint8) for d in range(4)]),
        )
        for a, group in enumerate(("A", "B", "C"))
        for c, character in enumerate(("x", "y"))
    ]
    return write(path, (classes[index] for index in order), name="tiny", shape=(1, 2, 2), source="test", licence="none")


def test_splits_and_data_do_not_depend_on_the_order_in_the_store(tmp_path):
    protocol = AlphabetProtocol(characters=2, train_drawings=3, test_drawings=1, held_out=1)
    seen = set()
    for number, order in enumerate(itertools.islice(itertools.permutations(range(6)), 0, 720, 180)):
        store = _tiny(tmp_path / str(number), list(order))
        data = Alphabets(store, 7, protocol)
        content = b"".join(data[name].train_images.numpy().tobytes() for name in "ABC")
        seen.add((data.split(1), tuple(data["B"].characters), hashlib.sha256(content).hexdigest()))
    assert len(seen) == 1


def test_an_alphabet_without_enough_says_so(tmp_path):
    store = _tiny(tmp_path / "tiny", list(range(6)))
    with pytest.raises(WarpgradError, match="2 characters of alphabet 'A'; 20 are needed"):
        Alphabets(store, 0)["A"]
    with pytest.raises(WarpgradError, match="0 characters of alphabet 'Z'"):
        Alphabets(store, 0)["Z"]
    with pytest.raises(WarpgradError, match="has 4 drawings; 15 to train and 5 to test"):
        Alphabets(store, 0, AlphabetProtocol(characters=2))["A"]


def test_runs_that_begin_together_draw_once_and_share(tmp_path, monkeypatch):
    """Processes as `reproduce` starts them: each opens data that none of them has yet."""
    program = (
        "from functools import partial; from warpgrad import data; from warpgrad.experiments.omniglot import methods\n"
        "data.prepare_drawn = partial(data.prepare_drawn, alphabets=12, characters=(8, 8))\n"
        "print(len(methods.open_data('drawn').classes))"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    jobs = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], found
    assert [out for out, _ in found] == ["96\n"] * 3
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["drawn"]


def test_who_waits_for_another_to_draw_takes_over_when_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    partial = partial_of(Path("data/drawn"))
    partial.mkdir(parents=True)
    held = locked(partial / LOCK, "held")
    small = functools.partial(prepare_drawn, alphabets=2, characters=(3, 3))
    monkeypatch.setattr(warpgrad.data, "prepare_drawn", small)
    waiting = threading.Thread(target=omniglot_data.open_data, args=("drawn",))
    waiting.start()
    waiting.join(timeout=1)
    assert waiting.is_alive()
    held.release()
    waiting.join(timeout=60)
    assert len(open_store(Path("data/drawn")).classes) == 6

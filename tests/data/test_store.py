"""The store: what is written is read back, and damage is named."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from warpgrad.data import ClassImages, open_store, write
from warpgrad.errors import WarpgradError

FACTS = {"name": "shades", "shape": (3, 2, 4), "source": "this test", "licence": "none"}


def shades(count: int = 3) -> list[ClassImages]:
    """Class i has i + 1 images of random pixels."""
    draw = np.random.Generator(np.random.PCG64(0))
    return [
        ClassImages(f"g{i % 2}/c{i}", f"g{i % 2}", draw.integers(0, 256, (i + 1, 3, 2, 4), dtype=np.uint8))
        for i in range(count)
    ]


def test_what_is_written_is_read_back(tmp_path):
    classes = shades()
    write(tmp_path / "made" / "on the way", classes, splits={"test": ["g0/c2", "g0/c0"]}, note="random", **FACTS)
    store = open_store(tmp_path / "made" / "on the way", verify=True)
    assert store.shape == (3, 2, 4)
    assert store.classes == ("g0/c0", "g1/c1", "g0/c2")
    assert store.groups == ("g0", "g1", "g0")
    assert len(store) == 3
    assert store.members() == {"g0": (0, 2), "g1": (1,)}
    assert store.split("test") == (2, 0)
    for index, item in enumerate(classes):
        assert store.count(index) == index + 1
        assert store.images(index).dtype is torch.uint8
        assert np.array_equal(store.images(index).numpy(), item.images)
    assert np.array_equal(store.images(2, [2, 0, 2]).numpy(), classes[2].images[[2, 0, 2]])
    raw = b"".join(item.images.tobytes() for item in classes)
    assert (store.path / "images.bin").read_bytes() == raw
    header = json.loads((store.path / "header.json").read_text())
    assert header["format"] == "warpgrad-images"
    assert header["version"] == 1
    assert header["dtype"] == "uint8"
    assert header["sha256"] == hashlib.sha256(raw).hexdigest()
    assert (header["source"], header["licence"], header["note"]) == ("this test", "none", "random")
    assert sorted(path.name for path in store.path.parent.iterdir()) == ["on the way"]


def test_images_are_copies_and_bad_indices_are_named(tmp_path):
    store = write(tmp_path / "s", shades(), **FACTS)
    before = store.images(1)
    store.images(1).zero_()
    assert torch.equal(store.images(1), before)
    with pytest.raises(WarpgradError, match="classes 0 to 2; there is no class 3"):
        store.images(3)
    with pytest.raises(WarpgradError, match="there is no class -1"):
        store.images(-1)
    with pytest.raises(WarpgradError, match="has 2 images; there is no image 2"):
        store.images(1, [0, 2])
    with pytest.raises(WarpgradError, match="no split 'train'; its splits are: none"):
        store.split("train")


def test_writing_streams_one_class_at_a_time(tmp_path):
    past: list[weakref.ref] = []

    def classes() -> Iterator[ClassImages]:
        for index in range(6):
            assert sum(reference() is not None for reference in past) <= 1
            images = np.full((2, 3, 2, 4), index, dtype=np.uint8)
            past.append(weakref.ref(images))
            item = ClassImages(str(index), "", images)
            del images
            yield item
            del item

    assert len(write(tmp_path / "s", classes(), **FACTS)) == 6


@pytest.mark.parametrize("failure", [RuntimeError("stop"), KeyboardInterrupt(), WarpgradError("bad")])
def test_an_interrupted_write_leaves_nothing(tmp_path, failure):
    def classes() -> Iterator[ClassImages]:
        yield from shades(2)
        assert list((tmp_path / "new").iterdir()), "it was under way"
        raise failure

    with pytest.raises(type(failure)):
        write(tmp_path / "new" / "s", classes(), **FACTS)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WarpgradError, match=r"could not be written.*No space left"):
        write(tmp_path / "s", shades(), **FACTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([ClassImages("a", "", np.zeros((1, 3, 4, 2), dtype=np.uint8))], "class 'a' of shades holds uint8"),
        ([ClassImages("a", "", np.zeros((1, 3, 2, 4)))], "holds float64"),  # type: ignore[arg-type]
        ([ClassImages("a", "", np.zeros((0, 3, 2, 4), dtype=np.uint8))], "n at least 1"),
        ([*shades(1), *shades(1)], "two classes have the same name"),
        ([], "there are no classes"),
    ],
)
def test_classes_that_do_not_fit_are_refused_and_nothing_is_left(tmp_path, classes, message):
    with pytest.raises(WarpgradError, match=message):
        write(tmp_path / "s", classes, **FACTS)
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_never_overwritten(tmp_path):
    store = write(tmp_path / "s", shades(), **FACTS)
    before = (store.path / "images.bin").read_bytes()
    with pytest.raises(WarpgradError, match="already exists"):
        write(tmp_path / "s", shades(2), **FACTS)
    assert (store.path / "images.bin").read_bytes() == before


def test_another_version_another_format_and_no_header_are_told_apart(tmp_path):
    store = write(tmp_path / "s", shades(), **FACTS)
    file = store.path / "header.json"
    header = json.loads(file.read_text())
    file.write_text(json.dumps({**header, "version": 2}))
    with pytest.raises(WarpgradError, match="of version 2, but this release reads version 1"):
        open_store(store.path)
    for foreign in ({**header, "format": "other"}, [], {}):
        file.write_text(json.dumps(foreign))
        with pytest.raises(WarpgradError, match="the format of its"):
            open_store(store.path)
    file.unlink()
    with pytest.raises(WarpgradError, match=r"it has no header\.json; make one with 'warpgrad data prepare'"):
        open_store(store.path)
    with pytest.raises(WarpgradError, match="is not a prepared data set"):
        open_store(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "float32", "dtype is 'float32'"),
        ("name", 3, "'name' is not a string"),
        ("shape", [3, 2], "'shape' is not three"),
        ("shape", [3, 0, 4], "'shape' is not three"),
        ("shape", [3, True, 4], "'shape' is not a list of int"),
        ("classes", ["a", "a", "b"], "two classes have the same name"),
        ("classes", None, "'classes' is not a list"),
        ("groups", ["g0"], "'groups' does not name one group per class"),
        ("offsets", [0, 1, 3], "'offsets' does not fit"),
        ("offsets", [0, 3, 3, 6], "'offsets' does not grow"),
        ("offsets", [1, 2, 3, 6], "'offsets' does not fit"),
        ("splits", {"x": ["nobody"]}, "split 'x' names the unknown class 'nobody'"),
        ("splits", [], "'splits' is not an object"),
    ],
)
def test_a_damaged_header_names_the_damage(tmp_path, field, value, message):
    store = write(tmp_path / "s", shades(), **FACTS)
    file = store.path / "header.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(WarpgradError, match=f"is damaged.*{message}"):
        open_store(store.path)


def test_damaged_pixels_are_noticed_by_size_always_and_by_checksum_unless_told_otherwise(tmp_path):
    store = write(tmp_path / "s", shades(), **FACTS)
    file = store.path / "images.bin"
    raw = bytearray(file.read_bytes())
    raw[17] ^= 1
    file.write_bytes(raw)
    assert len(open_store(store.path, verify=False)) == 3
    with pytest.raises(WarpgradError, match=r"is damaged: images\.bin does not match the checksum"):
        open_store(store.path)
    file.write_bytes(raw[:-1])
    with pytest.raises(WarpgradError, match="has 143 bytes instead of 144"):
        open_store(store.path)
    file.unlink()
    with pytest.raises(WarpgradError, match=r"images\.bin is missing"):
        open_store(store.path)
    (store.path / "header.json").write_text("{")
    with pytest.raises(WarpgradError, match=r"header\.json cannot be read"):
        open_store(store.path)


def test_a_number_of_thousands_of_digits_in_the_header_is_damage(tmp_path):
    store = write(tmp_path / "s", shades(), **FACTS)
    file = store.path / "header.json"
    file.write_text(file.read_text().replace('"version": 1', f'"version": {"9" * 6000}'))
    with pytest.raises(WarpgradError, match=r"is damaged: header\.json cannot be read"):
        open_store(store.path)

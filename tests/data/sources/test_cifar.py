"""CIFAR-FS and FC100 from their public tree: what is stored, what is refused by name, and the real thing."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.interrupting import goes_on
from warpgrad.data import CIFAR_FS, FC100, CifarSplits, open_store, prepare_cifar
from warpgrad.data.sources import cifar
from warpgrad.data.sources.cifar import CifarContents
from warpgrad.errors import WarpgradError

CONTENTS = CifarContents(classes=6, images=3)
SMALL = CifarSplits("small", "bertinetto", {"train": 3, "validation": 1, "test": 2}, by_group=False)
APART = CifarSplits("apart", "fc100", {"train": 2, "validation": 2, "test": 2}, by_group=True)
GROUPS = {"ant": "insects", "bee": "insects", "cod": "fish", "eel": "fish", "oak": "trees", "fir": "trees"}
LISTS = {
    "bertinetto": {"train": "eel\nant\noak\n", "val": "bee\r\n", "test": "\ncod\nfir"},
    "fc100": {"train": "ant\nbee\n", "val": "cod\neel\n", "test": "fir\noak\n"},
}


def pixels_of(name: str) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(list(name.encode()))).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def tree() -> dict[str, bytes]:
    names = [f"cifar100/data/{name}/{name}_{number:04d}.png" for name in GROUPS for number in range(CONTENTS.images)]
    files = {name: png(pixels_of(name)) for name in names}
    for folder, lists in LISTS.items():
        files |= {f"cifar100/splits/{folder}/{split}.txt": text.encode() for split, text in lists.items()}
    return {**files, "cifar100/superclasses.json": json.dumps(GROUPS).encode()}


def packed(path: Path, files: dict[str, bytes], order: random.Random | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(files)
    if order is not None:
        order.shuffle(names)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, files[name])
    return path


def test_images_splits_and_superclasses_are_those_of_the_tree(tmp_path, tree):
    done: list[tuple[int, int]] = []
    archive = packed(tmp_path / "cifar100.zip", tree)
    store = prepare_cifar(archive, tmp_path / "s", SMALL, lambda *numbers: done.append(numbers), _contents=CONTENTS)
    assert store.classes == ("ant", "bee", "cod", "eel", "fir", "oak")
    assert store.groups == tuple(GROUPS[name] for name in store.classes)
    assert store.shape == (3, 32, 32)
    assert store.header.name == "small"
    assert {split: [store.classes[index] for index in store.split(split)] for split in store.header.splits} == {
        "train": ["eel", "ant", "oak"],
        "validation": ["bee"],
        "test": ["cod", "fir"],
    }
    assert done == [(number, 6) for number in range(1, 7)]
    for index, name in enumerate(store.classes):
        for number, image in enumerate(store.images(index)):
            expected = pixels_of(f"cifar100/data/{name}/{name}_{number:04d}.png")
            assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_archive_folder_and_any_order_give_the_same_bytes_wherever_they_are_found(tmp_path, tree, monkeypatch):
    archive = packed(tmp_path / "first" / "cifar100.zip", tree)
    store = prepare_cifar(archive, tmp_path / "s", SMALL, _contents=CONTENTS)
    packed(tmp_path / "raw" / "cifar-fs" / "cifar100.zip", tree, random.Random(1))
    with zipfile.ZipFile(archive) as whole:
        whole.extractall(tmp_path / "unpacked")
    monkeypatch.setenv("WARPGRAD_DATA", str(tmp_path / "raw"))
    sources = [None, tmp_path / "raw", tmp_path / "first", tmp_path / "unpacked", tmp_path / "unpacked" / "cifar100"]
    for number, source in enumerate(sources):
        again = prepare_cifar(source, tmp_path / f"again{number}", SMALL, _contents=CONTENTS)
        for file in ("header.json", "images.bin"):
            assert (again.path / file).read_bytes() == (store.path / file).read_bytes()
    monkeypatch.chdir(tmp_path / "unpacked" / "cifar100")
    here = prepare_cifar(".", tmp_path / "here", SMALL, _contents=CONTENTS)
    assert here.header == store.header


def test_the_two_data_sets_differ_in_splits_alone(tmp_path, tree):
    archive = packed(tmp_path / "cifar100.zip", tree)
    first = prepare_cifar(archive, tmp_path / "a", SMALL, _contents=CONTENTS)
    second = prepare_cifar(archive, tmp_path / "b", APART, _contents=CONTENTS)
    assert first.header.sha256 == second.header.sha256
    assert first.classes == second.classes
    assert second.header.splits == {"train": ("ant", "bee"), "validation": ("cod", "eel"), "test": ("fir", "oak")}


def test_a_tree_without_superclasses_has_no_groups(tmp_path, tree):
    del tree["cifar100/superclasses.json"]
    store = prepare_cifar(packed(tmp_path / "cifar100.zip", tree), tmp_path / "s", SMALL, _contents=CONTENTS)
    assert set(store.groups) == {""}
    assert "superclasses" not in store.header.note


def test_an_interrupted_command_goes_on(tmp_path, tree, monkeypatch):
    archive = packed(tmp_path / "cifar100.zip", tree)
    goes_on(partial(prepare_cifar, archive, splits=SMALL, _contents=CONTENTS), tmp_path, monkeypatch, cifar, "exactly")


def spoilt(tree: dict[str, bytes], kind: str) -> None:
    picture = "cifar100/data/bee/bee_0001.png"
    match kind:
        case "a picture is missing":
            del tree[picture]
        case "a picture more":
            tree["cifar100/data/bee/more.png"] = tree[picture]
        case "a class is missing":
            for name in [name for name in tree if "/data/cod/" in name]:
                del tree[name]
        case "no pictures":
            for name in [name for name in tree if name.endswith(".png")]:
                del tree[name]
        case "two trees":
            tree["other/data/bee/bee_0001.png"] = tree[picture]
        case "wrong size":
            tree[picture] = png(np.zeros((32, 31, 3), dtype=np.uint8))
        case "damaged":
            tree[picture] = tree[picture][:200]
        case "no split file":
            del tree["cifar100/splits/bertinetto/val.txt"]
        case "unknown class":
            tree["cifar100/splits/bertinetto/val.txt"] = b"yak\n"
        case "class in two splits":
            tree["cifar100/splits/bertinetto/val.txt"] = b"ant\n"
        case "class twice":
            tree["cifar100/splits/bertinetto/test.txt"] = b"cod\ncod\n"
        case "short split":
            tree["cifar100/splits/bertinetto/test.txt"] = b"cod\n"
        case "no text":
            tree["cifar100/splits/bertinetto/val.txt"] = b"\xff\xfe\x00"
        case "no superclass":
            tree["cifar100/superclasses.json"] = b'{"ant": "insects"}'
        case "no json":
            tree["cifar100/superclasses.json"] = b"{"
        case "no table":
            tree["cifar100/superclasses.json"] = b'{"ant": 3}'


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("a picture is missing", "class 'bee' has 2 images instead of 3; get cifar100.zip from"),
        ("a picture more", "class 'bee' has 4 images instead of 3"),
        ("a class is missing", "holds 5 classes instead of 6"),
        ("no pictures", r"is not the tree of CIFAR-FS: it holds no data/<class>/\*\.png"),
        ("two trees", "more than one data folder"),
        ("wrong size", r"bee_0001\.png is 31×32 instead of 32×32: get"),
        ("damaged", r"bee_0001\.png is not a readable image"),
        ("no split file", r"has no cifar100/splits/bertinetto/val\.txt.*add it, with one class per line"),
        ("unknown class", "the split validation names the class 'yak', which has no images"),
        ("class in two splits", "the class 'ant' is both in train and in validation"),
        ("class twice", "the class 'cod' is twice in test"),
        ("short split", "the split test has 1 classes instead of 2"),
        ("no text", r"val\.txt is not UTF-8 text"),
        ("no superclass", "has no superclass for 'bee'"),
        ("no json", r"superclasses\.json is not valid JSON"),
        ("no table", "is not a JSON object from class names to group names"),
    ],
)
def test_what_is_amiss_is_named_and_nothing_is_left(tmp_path, tree, kind, message):
    spoilt(tree, kind)
    archive = packed(tmp_path / "raw" / "cifar100.zip", tree)
    with pytest.raises(WarpgradError, match=message):
        prepare_cifar(archive, tmp_path / "deep" / "s", SMALL, _contents=CONTENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_superclasses_of_fc100_stay_together(tmp_path, tree):
    tree["cifar100/splits/fc100/val.txt"] = b"bee\neel\n"
    tree["cifar100/splits/fc100/train.txt"] = b"ant\ncod\n"
    archive = packed(tmp_path / "cifar100.zip", tree)
    with pytest.raises(
        WarpgradError, match=r"superclass 'insects' is both in train and in validation, but apart keeps"
    ):
        prepare_cifar(archive, tmp_path / "s", APART, _contents=CONTENTS)


def test_a_whole_archive_is_asked_for_by_default_and_a_full_destination_is_refused_first(tmp_path, tree, monkeypatch):
    archive = packed(tmp_path / "cifar100.zip", tree)
    with pytest.raises(WarpgradError, match="holds 6 classes instead of 100"):
        prepare_cifar(archive, tmp_path / "s")
    (tmp_path / "s").mkdir()
    with pytest.raises(WarpgradError, match="already exists"):
        prepare_cifar(tmp_path / "nowhere", tmp_path / "s")
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(WarpgradError, match=r"WARPGRAD_DATA is not set: get cifar100\.zip from"):
        prepare_cifar(None, tmp_path / "t")
    (tmp_path / "torn.zip").write_bytes(archive.read_bytes()[:1000])
    with pytest.raises(WarpgradError, match="is not a complete zip archive"):
        prepare_cifar(tmp_path / "torn.zip", tmp_path / "t")


# The real thing.


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = os.environ.get("WARPGRAD_DATA")
    if not folder or not any((Path(folder) / place / "cifar100.zip").exists() for place in ("cifar-fs", ".")):
        pytest.skip("WARPGRAD_DATA names no folder with cifar100.zip of CIFAR-FS")
    path = tmp_path_factory.mktemp("real")
    yield prepare_cifar(None, path / "cifar-fs"), prepare_cifar(None, path / "fc100", FC100)
    shutil.rmtree(path)


@pytest.mark.real_data
def test_real_cifar_is_whole(real):
    for store, splits in zip(real, (CIFAR_FS, FC100), strict=True):
        opened = open_store(store.path, verify=True)
        assert opened.header.name == splits.name
        assert (len(opened), opened.shape) == (100, (3, 32, 32))
        assert [opened.count(index) for index in range(100)] == [600] * 100
        assert {len(members) for members in opened.members().values()} == {5}, "20 superclasses of 5"
        chosen = [index for split in splits.sizes for index in opened.split(split)]
        assert sorted(chosen) == list(range(100))
    few, apart = real
    assert few.header.sha256 == apart.header.sha256
    groups = [{apart.groups[index] for index in apart.split(split)} for split in ("train", "validation", "test")]
    assert [len(group) for group in groups] == [12, 4, 4]
    assert len(set.union(*groups)) == 20
    shared = {few.groups[index] for index in few.split("train")} & {few.groups[index] for index in few.split("test")}
    assert shared, "CIFAR-FS splits by class, not by superclass"


@pytest.mark.real_data
def test_real_cifar_looks_like_cifar(real):
    """The mean of CIFAR-100's channels is published as .507, .487, .441 (over its training images)."""
    store = real[0]
    means = sum(store.images(index, range(0, 600, 6)).double().mean(dim=(0, 2, 3)) for index in range(100)) / 25500
    assert means.tolist() == pytest.approx([0.507, 0.487, 0.441], abs=0.005)
    names = list(store.classes)
    sea, apple = (store.images(names.index(name)).double().mean(dim=(0, 2, 3)) for name in ("sea", "apple"))
    assert sea[2] > sea[0], "the sea is blue: channels are red, green, blue"
    assert apple[0] > apple[2]

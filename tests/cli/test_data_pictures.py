"""`warpgrad data prepare` and `montage` for sets of pictures, few-shot Omniglot, and prepared sets by name."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import warpgrad.cli.data as commands
from tests.support.omniglot_archives import SMALL, archives, trees
from warpgrad.cli.main import dispatch
from warpgrad.data import ClassImages, data_name, open_prepared, open_store, prepare_omniglot, write
from warpgrad.data.prepared import TITLES, prepared
from warpgrad.data.sources.omniglot import CONTENTS, SIZES, prepare_omniglot_few_shot
from warpgrad.data.splits import draw_splits
from warpgrad.errors import WarpgradError

__all__ = ["trees"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)


@pytest.fixture
def birds() -> Path:
    """Five classes, three pictures each; picture i of class c is of one colour."""
    for at in range(5):
        for number in range(3):
            path = Path("birds") / f"c{at}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (6, 4), (at, number, 200)).save(path)
    return Path("birds")


def small_store(path: Path, name: str, groups: tuple[str, ...] = ("g", "g", "h")) -> None:
    classes = [ClassImages(f"c{at}", group, np.full((2, 3, 4, 4), at, np.uint8)) for at, group in enumerate(groups)]
    splits = {"train": ["c0", "c1"], "test": ["c2"]}
    write(path, classes, name=name, shape=(3, 4, 4), source="this test", licence="none", splits=splits)


def test_class_folders_through_the_command(birds, capsys):
    dispatch(["data", "prepare", "folder", "--source", "birds", "--size", "5", "--split-seed", "3"])
    said = capsys.readouterr()
    store = open_prepared("birds")
    assert store.path == Path("data/birds")
    assert store.shape == (3, 5, 5)
    assert "birds: 5 classes: train 3, validation 1, test 1" in said.out
    assert "15 images, 5×5, RGB; 0 to 255; resized to 5×5 by Lanczos; splits drawn by seed 3" in said.out
    assert f"sha256 {store.header.sha256}" in said.out
    assert "data set: data/birds" in said.out
    assert "5/5 classes looked through" in said.err
    assert "5/5 classes prepared" in said.err
    with pytest.raises(WarpgradError, match="already exists"):
        dispatch(["data", "prepare", "folder", "--source", "birds"])
    dispatch(["data", "prepare", "folder", "--source", "birds", "--name", "grey birds", "--grey", "--out", "g"])
    assert open_store(Path("g")).header.name == "grey birds"
    assert open_store(Path("g")).shape == (1, 4, 6)


def test_an_interrupted_command_goes_on(birds, capsys, monkeypatch):
    def stop(what):
        def progress(done, total):
            if (what, done) == ("classes prepared", 2):
                raise KeyboardInterrupt

        return progress

    with monkeypatch.context() as patch:
        patch.setattr(commands, "_lines", stop)
        with pytest.raises(KeyboardInterrupt):
            dispatch(["data", "prepare", "folder", "--source", "birds"])
    assert not Path("data/birds").exists()
    capsys.readouterr()
    dispatch(["data", "prepare", "folder", "--source", "birds"])
    assert "resuming what an interrupted command left in data/.birds.partial" in capsys.readouterr().err
    dispatch(["data", "prepare", "folder", "--source", "birds", "--out", "unbroken"])
    assert open_store(Path("data/birds")).header == open_store(Path("unbroken")).header


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar-fs", "cifar100.zip"),
        ("fc100", "cifar100.zip"),
        ("mini-imagenet", "mini-imagenet.zip"),
        ("tiered-imagenet", "tiered-imagenet.zip"),
        ("omniglot-fewshot", "images_background.zip"),
    ],
)
def test_every_public_set_says_what_it_needs(name, file):
    with pytest.raises(WarpgradError, match=f"WARPGRAD_DATA is not set: get {file}"):
        dispatch(["data", "prepare", name])
    with pytest.raises(WarpgradError, match="nowhere does not exist"):
        dispatch(["data", "prepare", name, "--source", "nowhere"])
    with pytest.raises(WarpgradError, match=r"--size|nrecognized"):
        dispatch(["data", "prepare", name, "--size", "3"])
    assert list(Path().iterdir()) == []


def test_preparing_lists_what_there_is(capsys):
    with pytest.raises(SystemExit):
        dispatch(["data", "prepare", "--help"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*TITLES, "folder") if name != "drawn")
    with pytest.raises(WarpgradError, match=r"expected one of \{omniglot, "):
        dispatch(["data", "prepare"])


# Montage.


def test_a_montage_has_a_row_per_class_of_a_split_or_group(capsys):
    small_store(Path("data/cifar-fs"), "CIFAR-FS")
    options = ["--data", "cifar-fs", "--drawings", "2", "--zoom", "1", "--out", "page.png"]
    for more, said, rows in (
        ([], "CIFAR-FS, train, 2 classes: page.png", [0, 1]),
        (["--split", "test"], "CIFAR-FS, test, 1 classes: page.png", [2]),
        (["--group", "h"], "CIFAR-FS, h, 1 classes: page.png", [2]),
        (["--alphabet", "g"], "CIFAR-FS, g, 2 classes: page.png", [0, 1]),
        (["--classes", "1"], "CIFAR-FS, train, 1 of 2 classes: page.png", [0]),
    ):
        dispatch(["data", "montage", *options, *more])
        assert said in capsys.readouterr().out
        with Image.open("page.png") as page:
            shown = np.asarray(page)
        assert shown.shape == (6 * len(rows) + 2, 6 * 2 + 2, 3)
        assert [int(shown[2 + 6 * row, 2, 0]) for row in range(len(rows))] == rows
    with pytest.raises(WarpgradError, match="no group 'x'; it has g, h"):
        dispatch(["data", "montage", *options, "--group", "x"])
    with pytest.raises(WarpgradError, match="no split 'x'; its splits are: test, train"):
        dispatch(["data", "montage", *options, "--split", "x"])
    with pytest.raises(WarpgradError, match="either --group or --split"):
        dispatch(["data", "montage", *options, "--split", "test", "--group", "g"])


# By name.


def test_prepared_sets_are_found_by_name(tmp_path, monkeypatch):
    assert prepared("fc100") is None
    with pytest.raises(WarpgradError, match="no prepared FC100 here: make it with 'warpgrad data prepare fc100'"):
        open_prepared("fc100")
    with pytest.raises(WarpgradError, match="no prepared drawn alphabets here: make it with 'warpgrad data draw'"):
        open_prepared("drawn")
    with pytest.raises(
        WarpgradError, match=r"'mine' is not a prepared data set: choose one of omniglot, .* --name mine"
    ):
        open_prepared("mine")
    small_store(Path("data/fc100"), "FC100")
    small_store(Path("elsewhere/mine"), "mine")
    assert prepared("fc100") == Path("data/fc100")
    assert data_name(open_prepared("fc100")) == "fc100"
    assert data_name(open_prepared("elsewhere/mine")) == "mine"
    small_store(tmp_path / "raw" / "prepared" / "fc100", "other")
    monkeypatch.setenv("WARPGRAD_DATA", str(tmp_path / "raw"))
    assert prepared("fc100") == tmp_path / "raw" / "prepared" / "fc100"
    assert data_name(open_prepared("fc100")) == "other", "by its header, not by where it lies"
    Path("empty").mkdir()
    with pytest.raises(WarpgradError, match=r"it has no header\.json"):
        open_prepared("empty")


# Few-shot Omniglot.


def test_few_shot_omniglot_has_the_images_of_omniglot_and_splits_of_its_own(tmp_path, trees):
    sizes = {"train": 3, "validation": 1, "test": 1}
    source = archives(tmp_path / "zips", trees)
    store = prepare_omniglot_few_shot(source, tmp_path / "few", _contents=SMALL, _sizes=sizes)
    plain = prepare_omniglot(source, tmp_path / "plain", _contents=SMALL)
    assert store.header.sha256 == plain.header.sha256
    assert (store.classes, store.groups) == (plain.classes, plain.groups)
    assert {split: len(names) for split, names in store.header.splits.items()} == sizes
    assert sorted(name for names in store.header.splits.values() for name in names) == sorted(store.classes)
    assert data_name(store) == "omniglot-fewshot"
    assert "splits drawn by a fixed key from the names" in store.header.note
    shutil.rmtree(tmp_path / "plain")


def test_the_few_shot_splits_are_pinned():
    """1100 / 100 / 423 of the 1623 characters; the checksum stands for the names."""
    names = [
        f"{alphabet}/character{number:02d}"
        for alphabets in CONTENTS.values()
        for alphabet, count in alphabets.items()
        for number in range(1, count + 1)
    ]
    splits = draw_splits(names, SIZES, "omniglot-fewshot", 0)
    assert {split: len(members) for split, members in splits.items()} == {"train": 1100, "validation": 100, "test": 423}
    assert sorted(itertools.chain(*splits.values())) == sorted(names)
    assert splits == draw_splits(sorted(names, reverse=True), SIZES, "omniglot-fewshot", 0)
    digest = hashlib.sha256("\n".join(splits["test"]).encode()).hexdigest()
    assert digest == "5d6b8be04e312faa500c6b41a97c6f072080a4f3593e82ccfa7f937a2097c336"


def test_sizes_that_no_picture_may_have_are_refused_before_memory_is_taken(birds):
    for size in ("7072", "100000", "9" * 30):
        with pytest.raises(WarpgradError, match="at most 7071"):
            dispatch(["data", "prepare", "folder", "--source", "birds", "--size", size, "--out", "new"])
    assert not Path("new").exists()


def test_a_class_whose_name_is_no_text_is_named(birds):
    """A file system takes any bytes as a name."""
    Path("birds/c0").rename(os.fsdecode(b"birds/\xff\xfe"))
    with pytest.raises(WarpgradError, match=r"the name of class '\\udcff\\udcfe' of birds is not UTF-8; rename it"):
        dispatch(["data", "prepare", "folder", "--source", "birds", "--size", "4", "--out", "new"])
    assert [path.name for path in Path().iterdir()] == ["birds"]

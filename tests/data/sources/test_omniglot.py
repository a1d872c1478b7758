"""Omniglot: what is prepared, and what is refused and why."""

from __future__ import annotations

import io
import os
import random
import shutil
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from tests.data.drawn.test_drawn import REAL, figures
from tests.support.interrupting import goes_on
from tests.support.omniglot_archives import SMALL, archives, drawing, encoded, trees
from warpgrad.data import find_archives, montage, open_tree, prepare_omniglot, usable_alphabets
from warpgrad.data.sources import omniglot
from warpgrad.data.sources.omniglot import CONTENTS, ink
from warpgrad.errors import WarpgradError

__all__ = ["trees"]


def test_prepared_from_archives_from_folders_and_in_any_order_alike(tmp_path, trees):
    done: list[tuple[int, int]] = []
    store = prepare_omniglot(
        archives(tmp_path / "zips", trees),
        tmp_path / "store",
        progress=lambda *numbers: done.append(numbers),
        _contents=SMALL,
    )
    assert store.classes == (
        "Greek/character01",
        "Greek/character02",
        "Latin/character01",
        "ULOG/character01",
        "ULOG/character02",
    )
    assert store.groups == ("Greek", "Greek", "Latin", "ULOG", "ULOG")
    assert store.shape == (1, 28, 28)
    assert all(store.count(index) == 20 for index in range(5))
    assert store.split("background") == (0, 1, 2)
    assert store.split("evaluation") == (3, 4)
    assert done == [(number, 5) for number in range(1, 6)]
    assert store.header.licence.startswith("MIT")
    for number in range(20):
        expected = ink(
            trees["images_background"][f"images_background/Greek/character02/0002_{number + 1:02d}.png"], 28, ""
        )
        assert np.array_equal(store.images(1)[number, 0].numpy(), expected), "in the order of the drawers"

    shuffled = archives(tmp_path / "shuffled", trees, random.Random(3))
    (tmp_path / "unpacked").mkdir()
    for archive in SMALL:
        with zipfile.ZipFile(shuffled / f"{archive}.zip") as packed_anew:
            packed_anew.extractall(tmp_path / "unpacked")
    (tmp_path / "unpacked" / "images_background" / ".DS_Store").write_bytes(b"icons")
    for number, source in enumerate((shuffled, tmp_path / "unpacked")):
        again = prepare_omniglot(source, tmp_path / f"again{number}", _contents=SMALL)
        assert (again.path / "images.bin").read_bytes() == (store.path / "images.bin").read_bytes()
        assert (again.path / "header.json").read_bytes() == (store.path / "header.json").read_bytes()


def test_an_interrupted_command_goes_on(tmp_path, trees, monkeypatch):
    folder = archives(tmp_path / "raw", trees)
    goes_on(partial(prepare_omniglot, folder, _contents=SMALL), tmp_path, monkeypatch, omniglot, "ink")


def test_ink_is_255_paper_is_0_and_the_resize_is_antialiased():
    image = Image.new("1", (105, 105), 1)
    ImageDraw.Draw(image).rectangle([30, 31, 60, 70], fill=0)
    result = ink(encoded(image), 28, "here")
    assert result.dtype == np.uint8
    assert result.shape == (28, 28)
    assert result[13, 12] == 255
    assert result[2, 2] == result[25, 25] == 0
    assert len(np.unique(result)) > 5, "the borders are grey"
    # Lanczos keeps the amount of ink: 31 × 40 of 105 × 105.
    assert result.mean() / 255 == pytest.approx(31 * 40 / 105**2, rel=0.02)
    # The trap: on the 1-bit image the same filter is silently nearest neighbour.
    assert set(np.unique(np.asarray(image.resize((28, 28), Image.Resampling.LANCZOS).convert("L")))) == {0, 255}
    # 8-bit grey files with the same content are the same drawing.
    assert np.array_equal(ink(encoded(image.convert("L")), 28, "here"), result)


def spoilt(trees: dict[str, dict[str, bytes]], kind: str) -> dict[str, dict[str, bytes]]:
    background, evaluation = dict(trees["images_background"]), dict(trees["images_evaluation"])
    one = "images_background/Greek/character02/0002_07.png"
    if kind == "missing drawing":
        del background[one]
    elif kind == "missing character":
        background = {name: content for name, content in background.items() if "Greek/character02" not in name}
    elif kind == "missing alphabet":
        background = {name: content for name, content in background.items() if "Latin" not in name}
    elif kind == "strange alphabet":
        background["images_background/Klingon/character01/0001_01.png"] = drawing(0)
    elif kind == "extra character":
        background["images_background/Latin/character02/0001_01.png"] = drawing(0)
    elif kind == "extra drawing":
        background["images_background/Latin/character01/0001_21.png"] = drawing(0)
    elif kind == "doubled drawing":
        background["images_background/Latin/character01/0009_20.png"] = drawing(0)
    elif kind == "wrong size":
        background[one] = drawing(0, side=28)
    elif kind == "broken image":
        background[one] = background[one][:60]
    elif kind == "not an image":
        background[one] = b"GIF89a"
    elif kind == "inverted":
        background[one] = encoded(Image.new("1", (105, 105), 0))
    elif kind == "blank":
        background[one] = encoded(Image.new("1", (105, 105), 1))
    elif kind == "foreign":
        evaluation = {"holiday/beach.png": drawing(0)}
    elif kind == "swapped":
        background, evaluation = evaluation, background
    elif kind == "traversal":
        evaluation["../../outside.png"] = drawing(0)
    return {"images_background": background, "images_evaluation": evaluation}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing drawing", "is incomplete: Greek/character02 drawing 07 missing"),
        ("missing character", "is incomplete: Greek/character02 missing"),
        ("missing alphabet", "is incomplete: Latin/character01 missing"),
        ("strange alphabet", "contains the alphabet 'Klingon', which is not in Omniglot's images_background"),
        ("extra character", "contains more than Omniglot's images_background does, in Latin/character02"),
        ("extra drawing", "contains more than Omniglot's images_background does, in Latin/character01"),
        ("doubled drawing", r"contains a drawing twice, as .*0001_20\.png and .*0009_20\.png"),
        ("wrong size", r"character02/0002_07\.png is 28×28 instead of 105×105"),
        ("broken image", r"character02/0002_07\.png is not a readable PNG"),
        ("not an image", r"character02/0002_07\.png is not a readable PNG"),
        ("inverted", r"character02/0002_07\.png is blank or mostly ink"),
        ("blank", r"character02/0002_07\.png is blank or mostly ink"),
        ("foreign", r"images_evaluation\.zip is not Omniglot's images_evaluation"),
        ("swapped", r"images_background\.zip is not Omniglot's images_background"),
        ("traversal", "points out of the archive"),
    ],
)
def test_what_is_not_omniglot_is_refused_by_name_and_nothing_is_left(tmp_path, trees, kind, message):
    source = archives(tmp_path / "zips", spoilt(trees, kind))
    with pytest.raises(WarpgradError, match=message):
        prepare_omniglot(source, tmp_path / "deep" / "store", _contents=SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zips"]


def test_a_cut_off_archive_and_an_absent_one_are_named_and_nothing_is_left(tmp_path, trees, monkeypatch):
    source = archives(tmp_path / "zips", trees)
    cut = source / "images_evaluation.zip"
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(WarpgradError, match=r"images_evaluation\.zip is not a complete zip archive"):
        prepare_omniglot(source, tmp_path / "store", _contents=SMALL)
    cut.unlink()
    with pytest.raises(WarpgradError, match=r"images_evaluation\.zip not found.*github\.com/brendenlake/omniglot"):
        prepare_omniglot(source, tmp_path / "store", _contents=SMALL)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(WarpgradError, match=r"get images_background\.zip and images_evaluation\.zip from the folder"):
        prepare_omniglot(None, tmp_path / "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zips"]


def test_an_existing_destination_is_refused_before_any_work(tmp_path):
    (tmp_path / "store").mkdir()
    with pytest.raises(WarpgradError, match="already exists"):
        prepare_omniglot(tmp_path / "nowhere", tmp_path / "store")


def test_the_expected_contents_are_those_published():
    assert [len(alphabets) for alphabets in CONTENTS.values()] == [30, 20]
    assert sum(sum(alphabets.values()) for alphabets in CONTENTS.values()) == 1623
    assert sum(count >= 20 for alphabets in CONTENTS.values() for count in alphabets.values()) == 46


# The real thing.


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = os.environ.get("WARPGRAD_DATA")
    if not folder or not any((Path(folder) / place / "images_background.zip").exists() for place in ("omniglot", ".")):
        pytest.skip("WARPGRAD_DATA names no folder with images_background.zip and images_evaluation.zip of Omniglot")
    path = tmp_path_factory.mktemp("real") / "omniglot"
    yield prepare_omniglot(None, path)
    shutil.rmtree(path)


@pytest.mark.real_data
def test_real_omniglot_is_whole(real):
    assert len(real) == 1623
    members = real.members()
    assert {name: len(classes) for name, classes in members.items()} == {
        name: count for alphabets in CONTENTS.values() for name, count in alphabets.items()
    }
    assert all(real.count(index) == 20 for index in range(1623))
    assert len(real.split("background")) == 964
    assert len(real.split("evaluation")) == 659
    assert len(usable_alphabets(real)) == 46
    real.verify()
    assert len(torch.cat([real.images(index) for index in members["Greek"]]).unique()) > 200
    assert montage(real, members["Greek"][:2]).size == (602, 62)


@pytest.mark.real_data
def test_real_drawings_agree_with_an_average_over_areas(real):
    """Pillow's Lanczos against a box average of the 105×105 bits, written out here; they differ in sharpness only."""
    paths = find_archives(["images_background"], subfolder="omniglot", origin="")
    edges = np.linspace(0, 105, 29)
    weight = np.clip(
        np.minimum(edges[1:, None], np.arange(1, 106)) - np.maximum(edges[:-1, None], np.arange(105)), 0, 1
    )
    with open_tree(paths[0]) as files:
        names = [name for name in files.names if "/Greek/character05/" in name]
        for number, name in enumerate(names):
            bits = 1.0 - np.asarray(Image.open(io.BytesIO(files.read(name)))).astype(float)
            average = weight @ bits @ weight.T / 3.75**2
            ours = real.images(real.classes.index("Greek/character05"))[number, 0].numpy() / 255
            assert np.corrcoef(average.ravel(), ours.ravel())[0, 1] > 0.97
            assert ours.mean() == pytest.approx(average.mean(), rel=0.06)


@pytest.mark.real_data
def test_the_figures_that_the_drawn_alphabets_are_held_against(real):
    found = figures(real)
    assert found["ink"] == pytest.approx(REAL["ink"], abs=0.002)
    assert found["width"] == pytest.approx(REAL["width"], abs=0.02)
    assert found["within_between"] == pytest.approx(REAL["within_between"], abs=0.005)
    assert found["neighbour"] == pytest.approx(REAL["neighbour"], abs=0.02)

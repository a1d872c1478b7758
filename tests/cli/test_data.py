"""`warpgrad data …`: what it writes, prints and refuses."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from PIL import Image

from warpgrad import data
from warpgrad.cli.main import dispatch
from warpgrad.data import open_store
from warpgrad.errors import WarpgradError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)


def test_drawing_makes_a_store_and_says_where(capsys):
    dispatch(["data", "draw", "--alphabets", "2", "--out", "here/drawn"])
    said = capsys.readouterr()
    store = open_store(Path("here/drawn"), verify=True)
    assert len(store.members()) == 2
    assert "data set: here/drawn" in said.out
    assert store.header.sha256 in said.out
    assert "2/2 alphabets drawn" in said.err
    with pytest.raises(WarpgradError, match="already exists"):
        dispatch(["data", "draw", "--alphabets", "2", "--out", "here/drawn"])


def test_a_montage_is_one_alphabet_as_a_picture(capsys):
    dispatch(["data", "draw", "--alphabets", "2", "--out", "drawn"])
    dispatch(["data", "montage", "--data", "drawn/../drawn", "--drawings", "3", "--zoom", "1", "--out", "page.png"])
    store = open_store(Path("drawn"))
    name, members = next(iter(store.members().items()))
    with Image.open("page.png") as picture:
        assert picture.size == (3 * 30 + 2, len(members) * 30 + 2)
    assert f"{name}, {len(members)} characters: page.png" in capsys.readouterr().out
    with pytest.raises(WarpgradError, match="no alphabet 'Greek'; it has Drawn_01, Drawn_02"):
        dispatch(["data", "montage", "--data", "drawn/../drawn", "--alphabet", "Greek"])


def test_preparing_asks_for_archives_and_passes_them_on(tmp_path, monkeypatch):
    with pytest.raises(WarpgradError, match="WARPGRAD_DATA is not set"):
        dispatch(["data", "prepare", "omniglot"])
    with pytest.raises(WarpgradError, match="not found in"):
        dispatch(["data", "prepare", "omniglot", "--source", str(tmp_path)])
    for name in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(f"{name}.zip", "w") as archive:
            archive.writestr("readme.txt", "nothing")
    with pytest.raises(WarpgradError, match="is not Omniglot's images_background"):
        dispatch(["data", "prepare", "omniglot", "--source", str(tmp_path)])
    assert not Path("data").exists()


def test_download_fetches_first_and_then_prepares_from_there(monkeypatch, capsys):
    dispatch(["data", "draw", "--alphabets", "1", "--out", "stand-in"])
    asked = []
    monkeypatch.setattr(data, "download_omniglot", lambda folder: asked.append(("download", folder)))

    def prepare(source, destination, progress):
        asked.append(("prepare", source, destination))
        return open_store(Path("stand-in"))

    monkeypatch.setattr(data, "prepare_omniglot", prepare)
    dispatch(["data", "prepare", "omniglot", "--download"])
    archives = Path("data/omniglot-archives")
    assert asked == [("download", archives), ("prepare", archives, Path("data/omniglot"))]
    with pytest.raises(WarpgradError, match="either --source or --download"):
        dispatch(["data", "prepare", "omniglot", "--download", "--source", "somewhere"])
    with pytest.raises(WarpgradError, match="unrecognized options: mnist; choose one of omniglot, "):
        dispatch(["data", "prepare", "mnist"])


@pytest.mark.parametrize("words", [[], ["burn"]])
def test_unknown_words_are_answered_with_what_there_is(words):
    with pytest.raises(WarpgradError, match="prepare, draw, montage"):
        dispatch(["data", *words])

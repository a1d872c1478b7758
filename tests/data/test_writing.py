"""A data set whose writing is interrupted goes on where it stopped, and ends with the bytes of an unbroken one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import ROOT
from warpgrad.data import ClassImages, ImageStore, write
from warpgrad.data.writing import partial_of
from warpgrad.errors import WarpgradError

COUNT = 5
FACTS = {"name": "shades", "shape": (3, 2, 4), "source": "drawn", "licence": "free", "splits": {"test": ["c1"]}}


class Source:
    """Classes of random images that note which of them were read, and fail when the one at `stop` is."""

    def __init__(self, stop: int | None = None, failure: BaseException | None = None) -> None:
        self.stop, self.failure = stop, failure or KeyboardInterrupt()
        self.read: list[int] = []

    def __iter__(self) -> Iterator[ClassImages]:
        for place in range(COUNT):
            yield ClassImages(f"c{place}", f"g{place % 2}", lambda place=place: self._images(place))

    def _images(self, place: int) -> np.ndarray:
        if place == self.stop:
            raise self.failure
        self.read.append(place)
        return np.random.default_rng(place).integers(0, 256, (place + 1, 3, 2, 4), dtype=np.uint8)


def written(folder: Path, source: Source, fingerprint: str | None = "one") -> ImageStore:
    return write(folder / "s", source, fingerprint=fingerprint, **FACTS)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def unbroken(tmp_path: Path) -> dict[str, bytes]:
    return contents(written(tmp_path / "unbroken", Source()).path)


@pytest.mark.parametrize("stop", range(COUNT))
def test_an_interrupted_write_goes_on_after_the_last_whole_class(tmp_path, unbroken, stop):
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, Source(stop))
    assert not (tmp_path / "s").exists()
    second = Source()
    store = written(tmp_path, second)
    assert second.read == list(range(stop, COUNT))
    assert contents(store.path) == unbroken
    store.verify()
    assert not partial_of(store.path).exists()


@pytest.mark.parametrize("name", ["images.bin", "classes.jsonl", "header.json"])
def test_what_waits_in_place_of_an_interrupted_write_is_neither_followed_nor_waited_for(tmp_path, name):
    partial_of(tmp_path / "s").mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    planted = partial_of(tmp_path / "s") / name
    planted.symlink_to(precious)
    with pytest.raises(WarpgradError, match="could not be written"):
        written(tmp_path, Source())
    assert precious.read_text() == "precious"
    planted.unlink()
    os.mkfifo(planted)
    with pytest.raises(WarpgradError, match="could not be written"):
        written(tmp_path, Source())


def test_a_write_that_ends_on_a_full_disk_names_the_place_and_goes_on_later(tmp_path, unbroken):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(WarpgradError, match=rf"could not be written to {tmp_path}.*repeat the command"):
            written(tmp_path, Source())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(written(tmp_path, Source()).path) == unbroken


def test_a_second_interruption_loses_nothing_either(tmp_path, unbroken):
    for stop, read in ((2, [0, 1]), (4, [2, 3])):
        source = Source(stop)
        with pytest.raises(KeyboardInterrupt):
            written(tmp_path, source)
        assert source.read == read
    assert contents(written(tmp_path, Source()).path) == unbroken


def test_a_process_that_is_killed_in_the_middle_of_a_class_is_no_loss(tmp_path, unbroken):
    program = (
        "import os, pathlib, signal, sys; sys.path.insert(0, sys.argv[2])\n"
        "import tests.data.test_writing as own\n"
        "class Deadly(own.Source):\n"
        "    def _images(self, place):\n"
        "        if place == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super()._images(place)\n"
        "own.written(pathlib.Path(sys.argv[1]), Deadly())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path), str(ROOT)], check=False, timeout=300)
    assert done.returncode == -9
    with (partial_of(tmp_path / "s") / "images.bin").open("ab") as file:
        file.write(b"half a class")
    source = Source()
    assert contents(written(tmp_path, source).path) == unbroken
    assert source.read == [3, 4]


@pytest.mark.parametrize("damage", ["bytes", "shorter", "line", "not json", "not a class", "no images"])
def test_what_is_not_whole_is_read_again(tmp_path, unbroken, damage):
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, Source(4))
    images, journal = (partial_of(tmp_path / "s") / name for name in ("images.bin", "classes.jsonl"))
    data = bytearray(images.read_bytes())
    if damage == "bytes":
        data[24 * (1 + 2) + 5] ^= 1  # in the third class
    elif damage == "shorter":
        del data[-1]
    elif damage == "line":
        journal.write_bytes(journal.read_bytes()[:-3])
    else:
        last = {"not json": b"[", "not a class": b"3", "no images": b'["a", "", 0, ""]'}[damage]
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]) + last + b"\n")
    images.write_bytes(data)
    source = Source()
    assert contents(written(tmp_path, source).path) == unbroken
    assert source.read == ([2, 3, 4] if damage == "bytes" else [3, 4])


def test_another_source_begins_anew(tmp_path, unbroken):
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, Source(4))
    source = Source()
    assert contents(written(tmp_path, source, "two").path) == unbroken
    assert source.read == list(range(COUNT))


def test_a_full_disk_keeps_what_is_done_and_says_so(tmp_path, unbroken):
    with pytest.raises(WarpgradError, match=r"No space left.*: fix that and repeat the command, which resumes"):
        written(tmp_path, Source(3, OSError(28, os.strerror(28))))
    source = Source()
    assert contents(written(tmp_path, source).path) == unbroken
    assert source.read == [3, 4]


def test_a_class_that_cannot_be_read_leaves_nothing(tmp_path):
    with pytest.raises(WarpgradError, match="bad"):
        written(tmp_path / "new", Source(3, WarpgradError("bad")))
    assert list(tmp_path.iterdir()) == []


def test_two_processes_cannot_write_one_data_set(tmp_path, unbroken):
    class Twice(Source):
        def _images(self, place: int) -> np.ndarray:
            with pytest.raises(WarpgradError, match=r"another process is writing .*\.s\.partial: wait for it"):
                written(tmp_path, Source())
            return super()._images(place)

    assert contents(written(tmp_path, Twice()).path) == unbroken

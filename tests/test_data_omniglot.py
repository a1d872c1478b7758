"""The store, the archives, the download and Omniglot: what is written, and what is refused and why."""

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import json
import os
import random
import shutil
import stat
import threading
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from test_data_drawn import REAL, figures
from warpgrad.data import (
    ClassImages,
    Limits,
    download,
    find_archives,
    montage,
    open_store,
    open_tree,
    prepare_omniglot,
    usable_alphabets,
    write,
)
from warpgrad.data.omniglot import CONTENTS, ink
from warpgrad.errors import WarpgradError

# The store.

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
    with pytest.raises(WarpgradError, match="exists already"):
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
        with pytest.raises(WarpgradError, match="of another format"):
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
        ("name", 3, "'name' is not a text"),
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
        ("splits", [], "'splits' is not a table"),
    ],
)
def test_a_damaged_header_names_the_damage(tmp_path, field, value, message):
    store = write(tmp_path / "s", shades(), **FACTS)
    file = store.path / "header.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(WarpgradError, match=f"is damaged.*{message}"):
        open_store(store.path)


def test_damaged_pixels_are_noticed_by_size_always_and_by_checksum_on_request(tmp_path):
    store = write(tmp_path / "s", shades(), **FACTS)
    file = store.path / "images.bin"
    raw = bytearray(file.read_bytes())
    raw[17] ^= 1
    file.write_bytes(raw)
    assert len(open_store(store.path)) == 3
    with pytest.raises(WarpgradError, match=r"is damaged: the checksum of images\.bin"):
        open_store(store.path, verify=True)
    file.write_bytes(raw[:-1])
    with pytest.raises(WarpgradError, match="has 143 bytes instead of 144"):
        open_store(store.path)
    file.unlink()
    with pytest.raises(WarpgradError, match=r"images\.bin is missing"):
        open_store(store.path)
    (store.path / "header.json").write_text("{")
    with pytest.raises(WarpgradError, match=r"header\.json cannot be read"):
        open_store(store.path)


# Archives.


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def refused(path: Path, limits: Limits | None = None) -> str:
    with pytest.raises(WarpgradError) as caught, open_tree(path, limits):
        pass
    return str(caught.value)


def test_a_zip_and_a_folder_give_the_same_sorted_files(tmp_path):
    files = {"top/b/2.txt": b"two", "top/a/1.txt": b"one", "top/b/10.txt": b"ten"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    archive = packed(tmp_path / "top.zip", {"top/": b"", **files})
    for place in (archive, tmp_path / "top"):
        with open_tree(place) as tree:
            assert tree.names == ("top/a/1.txt", "top/b/10.txt", "top/b/2.txt")
            assert {name: tree.read(name) for name in tree.names} == files


@pytest.mark.parametrize(
    "name", ["../up.png", "a/../../up.png", "/etc/absolute.png", "a\\..\\b.png", "C:/drive.png", ".."]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    message = refused(packed(tmp_path / "evil.zip", {"fine.png": b"", name: b"x"}))
    assert "is refused" in message
    assert "points out of the archive" in message or "no plain relative path" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.zip"]


def test_links_encryption_and_doubles_are_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert "is a link or a device" in refused(path)
    raw = bytearray(packed(path, {"secret.png": b"x"}).read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    assert "is encrypted" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.png", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("one.png", b"2")
    assert "is in it twice" in refused(path)


def test_bombs_are_refused_before_anything_is_unpacked(tmp_path):
    path = packed(tmp_path / "bomb.zip", {f"{index}.png": bytes(1000) for index in range(5)})
    assert "holds 5 files, more than the 4" in refused(path, Limits(files=4))
    assert "unpacks to 1000 bytes, more than the 999" in refused(path, Limits(file_bytes=999))
    assert "more than the 4999 bytes" in refused(path, Limits(total_bytes=4999))
    with open_tree(path, Limits(files=5, file_bytes=1000, total_bytes=5000)) as tree:
        assert len(tree.names) == 5


def test_a_member_never_yields_more_than_it_declares(tmp_path):
    """The declared size is what the limits are held against; a lie about it is a damage, not a way around."""
    path = packed(tmp_path / "lie.zip", {"a.png": bytes(100_000)})
    raw = bytearray(path.read_bytes())
    place = raw.index(b"PK\x01\x02")
    raw[place + 24 : place + 28] = (10).to_bytes(4, "little")
    path.write_bytes(raw)
    with open_tree(path) as tree, pytest.raises(WarpgradError, match=r"is damaged at 'a\.png'"):
        tree.read("a.png")


def test_damaged_zips_are_named(tmp_path):
    path = packed(tmp_path / "a.zip", {"a.png": os.urandom(5000), "b.png": b"fine"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is not a whole zip archive" in refused(path)
    path.write_bytes(b"<html>not found</html>")
    assert "is not a whole zip archive" in refused(path)
    flipped = bytearray(whole)
    flipped[2000] ^= 0xFF
    path.write_bytes(flipped)
    with open_tree(path) as tree:
        assert tree.read("b.png") == b"fine"
        with pytest.raises(WarpgradError, match=r"is damaged at 'a\.png' .*: download it again"):
            tree.read("a.png")


def test_finding_archives_or_saying_where_to_get_them(tmp_path, monkeypatch):
    wanted = {"names": ["one", "two"], "subfolder": "both", "origin": "their maker's page"}
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(WarpgradError, match=r"WARPGRAD_DATA is not set: get one\.zip and two\.zip from their maker"):
        find_archives(**wanted)
    with pytest.raises(WarpgradError, match="nowhere does not exist"):
        find_archives(**wanted, folder=tmp_path / "nowhere")
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "one.zip").touch()
    with pytest.raises(WarpgradError, match=r"two\.zip not found in"):
        find_archives(**wanted, folder=tmp_path)
    (tmp_path / "two").mkdir()
    expected = [tmp_path / "both" / "one.zip", tmp_path / "two"]
    assert find_archives(**wanted, folder=tmp_path) == expected
    monkeypatch.setenv("WARPGRAD_DATA", str(tmp_path))
    assert find_archives(**wanted) == expected
    (tmp_path / "two.zip").touch()
    assert find_archives(**wanted)[1] == tmp_path / "two.zip", "the archive before the folder"


# The download.

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine with one file, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/missing.zip":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[: 1000 if self.path == "/cut.zip" else None])

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def test_a_download_is_verified_and_made_once(server, tmp_path):
    address, asked = server
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "file.zip"
    assert download(f"{address}/file.zip", SHA256, target, lambda *numbers: seen.append(numbers)) == target
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    download(f"{address}/file.zip", SHA256, target)
    assert asked == ["/file.zip"]
    assert [path.name for path in target.parent.iterdir()] == ["file.zip"]


def test_what_is_not_what_was_asked_for_is_thrown_away(server, tmp_path):
    address, _ = server
    target = tmp_path / "file.zip"
    target.write_bytes(b"what was here before")
    for name in ("other", "cut"):
        with pytest.raises(WarpgradError, match=r"could not be fetched|has the checksum"):
            download(f"{address}/{name}.zip", SHA256 if name == "cut" else "0" * 64, target)
    with pytest.raises(WarpgradError, match="404"):
        download(f"{address}/missing.zip", SHA256, target)
    with pytest.raises(WarpgradError, match="only http and https"):
        download(target.as_uri(), SHA256, target)
    assert target.read_bytes() == b"what was here before"
    assert [path.name for path in tmp_path.iterdir()] == ["file.zip"]


# Omniglot. The tree is the published one, small; drawings are two strokes that vary with their place in the tree.

SMALL = {"images_background": {"Greek": 2, "Latin": 1}, "images_evaluation": {"ULOG": 2}}


def drawing(seed: object, mode: str = "1", side: int = 105) -> bytes:
    draw = random.Random(str(seed))
    image = Image.new(mode, (side, side), 1 if mode == "1" else 255)
    pen = ImageDraw.Draw(image)
    for _ in range(2):
        pen.line([draw.randrange(10, 95) for _ in range(6)], fill=0, width=3)
    return encoded(image)


def encoded(image: Image.Image) -> bytes:
    with io.BytesIO() as file:
        image.save(file, "PNG")
        return file.getvalue()


def tree(archive: str) -> dict[str, bytes]:
    return {
        f"{archive}/{alphabet}/character{character:02d}/{character:04d}_{number:02d}.png": drawing(
            (alphabet, character, number)
        )
        for alphabet, count in SMALL[archive].items()
        for character in range(1, count + 1)
        for number in range(1, 21)
    }


@pytest.fixture(scope="module")
def trees() -> dict[str, dict[str, bytes]]:
    return {archive: tree(archive) for archive in SMALL}


def archives(folder: Path, trees: dict[str, dict[str, bytes]], order: random.Random | None = None) -> Path:
    folder.mkdir()
    for archive, files in trees.items():
        members = list(files.items())
        if order is not None:
            order.shuffle(members)
        packed(folder / f"{archive}.zip", dict(members))
    return folder


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
        ("strange alphabet", "holds the alphabet 'Klingon', which is not in Omniglot's images_background"),
        ("extra character", "holds more than Omniglot's images_background does, in Latin/character02"),
        ("extra drawing", "holds more than Omniglot's images_background does, in Latin/character01"),
        ("doubled drawing", r"holds a drawing twice, as .*0001_20\.png and .*0009_20\.png"),
        ("wrong size", r"character02/0002_07\.png is 28×28 instead of 105×105"),
        ("broken image", r"character02/0002_07\.png is no readable PNG"),
        ("not an image", r"character02/0002_07\.png is no readable PNG"),
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
    with pytest.raises(WarpgradError, match=r"images_evaluation\.zip is not a whole zip archive"):
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
    with pytest.raises(WarpgradError, match="exists already"):
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

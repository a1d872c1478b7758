"""mini- and tieredImageNet: small files of their published formats, through the code that reads the real ones."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.interrupting import goes_on
from warpgrad.data import open_store, prepare_mini_imagenet, prepare_tiered_imagenet
from warpgrad.data import pictures as class_files
from warpgrad.data.sources import tiered_imagenet
from warpgrad.data.sources.mini_imagenet import MiniContents
from warpgrad.data.sources.tiered_imagenet import SIZES
from warpgrad.errors import WarpgradError

FILES = {"train": "train", "validation": "val", "test": "test"}


def picture(*key: int, side: int = 84) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(key)).integers(0, 256, (side, side, 3), dtype=np.uint8)


def encoded(pixels: np.ndarray, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=form)
    return buffer.getvalue()


def stored(store, name: str) -> np.ndarray:
    return store.images(store.classes.index(name)).permute(0, 2, 3, 1).numpy()


# miniImageNet.

CLASSES = {"train": ["n03", "n01", "n07"], "validation": ["n02"], "test": ["n09", "n05"]}
CONTENTS = MiniContents({split: len(names) for split, names in CLASSES.items()}, images=4)


def mini(source, destination, **options):
    return prepare_mini_imagenet(source, destination, _contents=CONTENTS, **options)


def mini_pictures(folder: Path) -> Path:
    """As distributed: the tables name the files, the folder images/ has them all, of many sizes."""
    (folder / "images").mkdir(parents=True)
    for split, names in CLASSES.items():
        rows = [(f"{name}{number:08d}.jpg", name) for number in range(4) for name in names]
        lines = ["filename,label", *(f"{file},{name}" for file, name in rows)]
        (folder / f"{FILES[split]}.csv").write_text("\r\n".join(lines) + "\r\n")
        for file, name in rows:
            side = 84 if name == "n01" else 120
            form = "PNG" if name == "n01" else "JPEG"
            (folder / "images" / file).write_bytes(encoded(picture(int(name[1:]), int(file[3:11]), side=side), form))
    return folder


def mini_pickles(folder: Path, protocol: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in CLASSES.items():
        # The images of a class do not lie side by side.
        keys = [(int(name[1:]), number) for number in range(4) for name in names]
        places = {name: list(range(at, 4 * len(names), len(names))) for at, name in enumerate(names)}
        value = {"image_data": np.stack([picture(*key) for key in keys]), "class_dict": places}
        (folder / f"mini-imagenet-cache-{FILES[split]}.pkl").write_bytes(pickle.dumps(value, protocol))
    return folder


def splits_of(store) -> dict[str, list[str]]:
    return {split: [store.classes[index] for index in store.split(split)] for split in store.header.splits}


def test_mini_imagenet_from_tables_and_pictures(tmp_path, monkeypatch):
    folder = mini_pictures(tmp_path / "raw" / "mini-imagenet")
    done: list[tuple[int, int]] = []
    store = mini(folder, tmp_path / "s", progress=lambda *numbers: done.append(numbers))
    assert (store.header.name, store.shape) == ("miniImageNet", (3, 84, 84))
    assert splits_of(store) == {split: sorted(names) for split, names in CLASSES.items()}
    assert done == [(number, 6) for number in range(1, 7)]
    assert [store.count(index) for index in range(6)] == [4] * 6
    for number in range(4):
        assert np.array_equal(stored(store, "n01")[number], picture(1, number)), "84×84 is kept as it is"
        with Image.open(folder / "images" / f"n09{number:08d}.jpg") as large:
            expected = np.asarray(large.resize((84, 84), Image.Resampling.LANCZOS))
        assert np.array_equal(stored(store, "n09")[number], expected)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for file in folder.rglob("*.*"):
            archive.write(file, f"any/{file.relative_to(folder)}")
    monkeypatch.setenv("WARPGRAD_DATA", str(tmp_path / "raw"))
    for number, source in enumerate((tmp_path / "packed.zip", None, tmp_path / "raw")):
        assert mini(source, tmp_path / f"again{number}").header == store.header


@pytest.mark.parametrize("protocol", [2, 4])
def test_mini_imagenet_from_pickles(tmp_path, protocol):
    done: list[tuple[int, int]] = []
    folder = mini_pickles(tmp_path / "raw", protocol)
    store = mini(folder, tmp_path / "s", progress=lambda *numbers: done.append(numbers))
    assert splits_of(store) == {split: sorted(names) for split, names in CLASSES.items()}
    assert done == [(number, 6) for number in range(1, 7)]
    for name in store.classes:
        expected = np.stack([picture(int(name[1:]), number) for number in range(4)])
        assert np.array_equal(stored(store, name), expected)
    open_store(store.path, verify=True)


def test_interrupted_commands_go_on(tmp_path, monkeypatch):
    goes_on(partial(mini, mini_pictures(tmp_path / "m")), tmp_path / "mini", monkeypatch, class_files, "read_picture")
    goes_on(partial(tiered, tiered_pickles(tmp_path / "t")), tmp_path / "tiered", monkeypatch, tiered_imagenet, "_png")


def mini_spoilt(folder: Path, kind: str) -> None:
    match kind:
        case "no table":
            (folder / "val.csv").unlink()
        case "no picture":
            (folder / "images" / "n0900000002.jpg").unlink()
        case "no columns":
            (folder / "val.csv").write_text("file,class\na,b\n")
        case "half a row":
            (folder / "val.csv").write_text("filename,label\nn0200000000.jpg\n")
        case "few images":
            (folder / "val.csv").write_text("filename,label\nn0200000000.jpg,n02\n")
        case "picture twice":
            (folder / "val.csv").write_text("filename,label\n" + 4 * "n0200000000.jpg,n02\n")
        case "class in two splits":
            (folder / "val.csv").write_text((folder / "train.csv").read_text().replace("n03,", "n33,"))
        case "short split":
            lines = [line for line in (folder / "test.csv").read_text().splitlines() if not line.endswith("n05")]
            (folder / "test.csv").write_text("\n".join(lines))
        case "way out":
            (folder / "val.csv").write_text("filename,label\n../train.csv,n02\n")
        case "damaged picture":
            (folder / "images" / "n0900000002.jpg").write_bytes(b"\xff\xd8 nothing")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no table", r"has no raw/val\.csv: get it from"),
        ("no picture", r"has no raw/images/n0900000002\.jpg, which raw/test\.csv names"),
        ("no columns", r"val\.csv has no columns filename and label"),
        ("half a row", r"val\.csv, line 2 does not name an image and a class"),
        ("picture twice", r"val\.csv: class 'n02' has 1 images instead of 4"),
        ("few images", r"val\.csv: class 'n02' has 1 images instead of 4"),
        ("class in two splits", "the class 'n01' is both in train and in validation"),
        ("short split", "the split test has 1 classes instead of 2"),
        ("way out", r"has no raw/images/\.\./train\.csv"),
        ("damaged picture", r"n0900000002\.jpg is not a readable image .*: download that image again"),
    ],
)
def test_what_is_amiss_in_tables_is_named_and_nothing_is_left(tmp_path, kind, message):
    mini_spoilt(mini_pictures(tmp_path / "raw"), kind)
    with pytest.raises(WarpgradError, match=message):
        mini(tmp_path / "raw", tmp_path / "deep" / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def spoilt_pickle(kind: str) -> object:
    images, places = np.zeros((4, 84, 84, 3), dtype=np.uint8), {"n02": [0, 1, 2, 3]}
    return {
        "no dict": [images, places],
        "no images": {"class_dict": places},
        "small": {"image_data": images[:, :80], "class_dict": places},
        "wide": {"image_data": images.astype(np.int32), "class_dict": places},
        "beyond": {"image_data": images, "class_dict": {"n02": [0, 1, 2, 4]}},
        "twice": {"image_data": images, "class_dict": {"n02": [0, 1, 2, 2]}},
        "few": {"image_data": images, "class_dict": {"n02": [0, 1, 2]}},
        "empty": {"image_data": images, "class_dict": {}},
        "taken": {"image_data": images, "class_dict": {"n01": [0, 1, 2, 3]}},
        "ragged": {"image_data": images, "class_dict": {"n02": [[0], [1, 2], [3]]}},
        "texts": {"image_data": images, "class_dict": {"n02": ["a", "b", "c", "d"]}},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no dict", "has no array 'image_data' and dict 'class_dict'"),
        ("no images", "has no array 'image_data' and dict 'class_dict'"),
        ("small", r"image_data is uint8 \(4, 80, 84, 3\) instead of uint8 \[n, 84, 84, 3\]"),
        ("wide", "image_data is int32"),
        ("beyond", "does not give every image one class"),
        ("twice", "class 'n02' has 3 images instead of 4"),
        ("few", "class 'n02' has 3 images instead of 4"),
        ("empty", "does not give every image one class"),
        ("taken", "the class 'n01' is both in train and in validation"),
        ("texts", "class 'n02' has 0 images instead of 4"),
        ("ragged", "class 'n02' has 0 images instead of 4"),
    ],
)
def test_what_is_amiss_in_pickles_is_named_and_nothing_is_left(tmp_path, kind, message):
    mini_pickles(tmp_path / "raw")
    (tmp_path / "raw" / "mini-imagenet-cache-val.pkl").write_bytes(pickle.dumps(spoilt_pickle(kind)))
    with pytest.raises(WarpgradError, match=message):
        mini(tmp_path / "raw", tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


class Harm:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_a_pickle_that_would_run_something_is_refused_with_the_way_around(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mini_pickles(tmp_path / "raw")
    (tmp_path / "raw" / "mini-imagenet-cache-test.pkl").write_bytes(pickle.dumps({"image_data": Harm()}))
    with pytest.raises(
        WarpgradError, match=r"test\.pkl is refused: it asks for .*system.*'warpgrad data prepare folder"
    ):
        mini(tmp_path / "raw", tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_the_whole_mini_imagenet_is_asked_for_by_default(tmp_path):
    assert MiniContents() == MiniContents({"train": 64, "validation": 16, "test": 20}, 600)
    mini_pickles(tmp_path / "raw")
    with pytest.raises(WarpgradError, match="has 4 images instead of 600"):
        prepare_mini_imagenet(tmp_path / "raw", tmp_path / "s")
    (tmp_path / "raw" / "mini-imagenet-cache-val.pkl").unlink()
    with pytest.raises(WarpgradError, match=r"has no mini-imagenet-cache-val\.pkl"):
        mini(tmp_path / "raw", tmp_path / "s")
    (tmp_path / "mini-imagenet").mkdir()
    with pytest.raises(WarpgradError, match=r"contains neither train\.csv nor unpacked pickles of miniImageNet"):
        mini(tmp_path, tmp_path / "s")
    with pytest.raises(WarpgradError, match="nowhere does not exist"):
        mini(tmp_path / "nowhere", tmp_path / "s")


# tieredImageNet.

TIERS = {
    "train": [("dog", "collie"), ("dog", "beagle"), ("garment", "maillot"), ("garment", "maillot")],
    "validation": [("bird", "crane")],
    "test": [("machine", "crane"), ("machine", "lathe")],
}
TIERED_SIZES = {"train": 4, "validation": 1, "test": 2}


def tiered(source, destination, **options):
    return prepare_tiered_imagenet(source, destination, _sizes=TIERED_SIZES, **options)


def labels_of(split: str) -> dict[str, object]:
    """Class c of the split has c + 2 images; they come class by class, the last class first."""
    pairs = TIERS[split]
    titles = sorted({title for title, _ in pairs})
    specific = [number for number in reversed(range(len(pairs))) for _ in range(number + 2)]
    return {
        "label_specific": np.array(specific),
        "label_general": np.array([titles.index(pairs[number][0]) for number in specific]),
        "label_specific_str": [name for _, name in pairs],
        "label_general_str": titles,
    }


def tiered_pickles(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for split in TIERS:
        labels = labels_of(split)
        images = [
            np.frombuffer(encoded(picture(len(split), at)), dtype=np.uint8)[:, None]
            for at in range(len(labels["label_specific"]))
        ]
        (folder / f"{FILES[split]}_images_png.pkl").write_bytes(pickle.dumps(images, 2))
        (folder / f"{FILES[split]}_labels.pkl").write_bytes(pickle.dumps(labels, 2))
    return folder


def test_tiered_imagenet_from_pickles(tmp_path):
    done: list[tuple[int, int]] = []
    store = tiered(tiered_pickles(tmp_path / "raw"), tmp_path / "s", progress=lambda *numbers: done.append(numbers))
    assert (store.header.name, store.shape) == ("tieredImageNet", (3, 84, 84))
    assert splits_of(store) == {
        "train": ["dog/beagle", "dog/collie", "garment/maillot (2)", "garment/maillot (3)"],
        "validation": ["bird/crane"],
        "test": ["machine/crane", "machine/lathe"],
    }
    assert store.members().keys() == {"dog", "garment", "bird", "machine"}
    assert done == [(number, 7) for number in range(1, 8)]
    # Of the training list: maillot (3) is 0..4, maillot (2) 5..8, beagle 9..11, collie 12..13.
    for name, places in {
        "garment/maillot (3)": range(5),
        "garment/maillot (2)": range(5, 9),
        "dog/beagle": range(9, 12),
        "dog/collie": range(12, 14),
    }.items():
        assert np.array_equal(stored(store, name), np.stack([picture(len("train"), at) for at in places]))
    open_store(store.path, verify=True)


def test_tiered_imagenet_from_class_folders(tmp_path):
    for split, pairs in TIERS.items():
        for at, (title, name) in enumerate(pairs):
            folder = tmp_path / "raw" / FILES[split] / f"{title}-{name}-{at}"
            folder.mkdir(parents=True)
            (folder / "one.png").write_bytes(encoded(picture(at, side=84 + at)))
    store = tiered(tmp_path / "raw", tmp_path / "s")
    assert {split: len(names) for split, names in store.header.splits.items()} == TIERED_SIZES
    assert np.array_equal(stored(store, "dog-collie-0")[0], picture(0))
    assert set(store.groups) == {""}
    with pytest.raises(WarpgradError, match="the split train has 4 classes instead of 351"):
        prepare_tiered_imagenet(tmp_path / "raw", tmp_path / "t")
    assert SIZES == {"train": 351, "validation": 97, "test": 160}
    (tmp_path / "raw" / "test").rename(tmp_path / "raw" / "rest")
    with pytest.raises(WarpgradError, match="is not in a class folder"):
        tiered(tmp_path / "raw", tmp_path / "t")


def tiered_spoilt(folder: Path, kind: str) -> None:
    labels = labels_of("test")
    images = folder / "test_images_png.pkl"
    match kind:
        case "no labels":
            (folder / "test_labels.pkl").unlink()
            return
        case "fewer images":
            images.write_bytes(pickle.dumps(pickle.loads(images.read_bytes())[:-1]))
        case "no list":
            images.write_bytes(pickle.dumps({}))
        case "large":
            images.write_bytes(pickle.dumps([np.frombuffer(encoded(picture(0, side=85)), dtype=np.uint8)] * 5))
        case "damaged":
            images.write_bytes(pickle.dumps([np.zeros(9, dtype=np.uint8)] * 5))
        case "wide":
            images.write_bytes(pickle.dumps([np.zeros(9, dtype=np.int32)] * 5))
        case "no numbers":
            labels["label_general"] = ["machine"] * 5
        case "ragged":
            labels["label_general"] = [[0], [0, 0], 0, 0, 0]
        case "no names":
            del labels["label_specific_str"]
        case "beyond":
            labels["label_specific_str"] = ["crane"]
        case "two superclasses":
            labels |= {"label_general": np.arange(5), "label_general_str": list("abcde")}
        case "uneven":
            labels["label_general"] = np.zeros(4, dtype=np.int64)
        case "shared superclass":
            labels["label_general_str"] = ["dog"]
    (folder / "test_labels.pkl").write_bytes(pickle.dumps(labels))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no labels", r"has no test_labels\.pkl"),
        ("fewer images", r"test_images_png\.pkl contains 4 images, but there are 5 labels"),
        ("no list", r"test_images_png\.pkl contains no list of images"),
        ("large", r"test_images_png\.pkl, image 3 is 85×85 instead of 84×84"),
        ("damaged", "image 3 is not a readable image"),
        ("wide", "is not an array of bytes"),
        ("no numbers", "has no integers 'label_general' and list 'label_general_str'"),
        ("ragged", "has no integers 'label_general' and list 'label_general_str'"),
        ("no names", "has no integers 'label_specific' and list 'label_specific_str'"),
        ("beyond", "'label_specific' has numbers that 'label_specific_str' does not name"),
        ("two superclasses", "puts the class 'crane' into 2 superclasses"),
        ("uneven", "labels 5 images by class and 4 by superclass"),
        ("shared superclass", "superclass 'dog' is both in train and in test"),
    ],
)
def test_what_is_amiss_in_tiered_pickles_is_named_and_nothing_is_left(tmp_path, kind, message):
    tiered_spoilt(tiered_pickles(tmp_path / "raw"), kind)
    with pytest.raises(WarpgradError, match=message):
        tiered(tmp_path / "raw", tmp_path / "deep" / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]

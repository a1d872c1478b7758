"""A person's own pictures in class folders: layouts, formats, sizes, splits, and what is refused by name."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from warpgrad.data import prepare_folder
from warpgrad.data.pictures import image_header, pixels, read_picture
from warpgrad.data.splits import draw_splits, fractions
from warpgrad.errors import WarpgradError

NAMES = [f"class{number:02d}" for number in range(10)]


def noise(*key: int, height: int = 8, width: int = 8, channels: int = 3) -> np.ndarray:
    draw = np.random.Generator(np.random.PCG64(key))
    return draw.integers(0, 256, (height, width, channels), dtype=np.uint8).squeeze(-1 if channels == 1 else ())


def encoded(pixels: np.ndarray | Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(buffer, format=form, **options)
    return buffer.getvalue()


def put(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def folders(root: Path, names: list[str] = NAMES, images: int = 2, **options: int) -> Path:
    for at, name in enumerate(names):
        for number in range(images):
            put(root / name / f"{number}.png", encoded(noise(at, number, **options)))
    return root


def splits_of(store) -> dict[str, list[str]]:
    return {split: [store.classes[index] for index in store.split(split)] for split in store.header.splits}


def test_plain_class_folders_with_drawn_splits(tmp_path):
    done, looked = [], []
    store = prepare_folder(
        folders(tmp_path / "birds"),
        tmp_path / "s",
        name="birds",
        progress=lambda *numbers: done.append(numbers),
        looked=lambda *numbers: looked.append(numbers),
    )
    assert store.header.name == "birds"
    assert store.classes == tuple(NAMES)
    assert store.shape == (3, 8, 8)
    assert {split: len(names) for split, names in splits_of(store).items()} == {"train": 6, "validation": 2, "test": 2}
    assert sorted(name for names in splits_of(store).values() for name in names) == NAMES
    assert done == looked == [(number, 10) for number in range(1, 11)]
    assert "splits drawn by seed 0" in store.header.note
    for at in range(10):
        for number, image in enumerate(store.images(at)):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), noise(at, number))


def test_drawn_splits_depend_on_seed_and_names_alone(tmp_path):
    source = folders(tmp_path / "birds")
    by_seed = []
    for number, seed in enumerate((None, 0, 1, 2, 3)):
        by_seed.append(prepare_folder(source, tmp_path / f"s{number}", name="b", split_seed=seed).header.splits)
    assert by_seed[0] == by_seed[1]
    assert len({splits["test"] for splits in by_seed[1:]}) > 1
    assert by_seed[0] == {
        split: tuple(names) for split, names in draw_splits(NAMES[::-1], fractions(10, ""), "split", 0).items()
    }


def test_a_draw_is_a_fixed_function_of_the_names():
    """Pinned: a change of these is a change of every data set whose splits were drawn."""
    expected = {"train": ["a", "b", "d"], "validation": ["e"], "test": ["c", "f"]}
    assert draw_splits("abcdef", {"train": 3, "validation": 1, "test": 2}, "split", 0) == expected


@pytest.mark.parametrize(("count", "sizes"), [(3, (1, 1, 1)), (5, (3, 1, 1)), (10, (6, 2, 2)), (100, (64, 16, 20))])
def test_fractions(count, sizes):
    assert tuple(fractions(count, "it").values()) == sizes


def test_split_folders_split_files_and_zips(tmp_path):
    homes = {"train": NAMES[:5], "val": NAMES[5:7], "test": NAMES[7:]}
    for split, names in homes.items():
        folders(tmp_path / "by folder" / split, names)
    plain = folders(tmp_path / "by file")
    for split, names in homes.items():
        put(plain / f"{split}.txt", "\n".join(names) + "\n")
    expected = {"train": NAMES[:5], "validation": NAMES[5:7], "test": NAMES[7:]}
    for number, source in enumerate((tmp_path / "by folder", plain)):
        store = prepare_folder(source, tmp_path / f"s{number}", name="b")
        assert splits_of(store) == expected
        assert "splits as in the source" in store.header.note
        with pytest.raises(WarpgradError, match="a split seed would have no effect"):
            prepare_folder(source, tmp_path / "t", name="b", split_seed=1)
        for top in ("", "outer/inner/"):
            with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
                for file in sorted(source.rglob("*.*")):
                    archive.write(file, f"{top}{file.relative_to(source)}")
                archive.writestr("__MACOSX/._0.png", b"icons")
            again = prepare_folder(tmp_path / "packed.zip", tmp_path / f"again{number}{len(top)}", name="b")
            assert splits_of(again) == expected
            assert again.images(0).shape == (2, 3, 8, 8)
    (plain / "val.txt").rename(plain / "validation.txt")
    assert splits_of(prepare_folder(plain, tmp_path / "longer name", name="b")) == expected


def test_classes_in_no_split_are_kept_and_counted(tmp_path):
    plain = folders(tmp_path / "b")
    for split, name in (("train", "class00"), ("val", "class01"), ("test", "class02")):
        put(plain / f"{split}.txt", name)
    store = prepare_folder(plain, tmp_path / "s", name="b")
    assert len(store) == 10
    assert "7 classes are in no split" in store.header.note


def test_files_that_are_no_pictures_are_left_out_and_told(tmp_path):
    source = folders(tmp_path / "b")
    put(source / "README.md", "about")
    put(source / "class03" / "notes.txt", "about")
    put(source / ".git" / "x.png", "hidden")
    put(source / "class03" / ".DS_Store", "hidden")
    store = prepare_folder(source, tmp_path / "s", name="b")
    assert store.count(3) == 2
    assert "2 files that are not images left out (.md, .txt), the first b/README.md" in store.header.note


def test_formats_and_sizes(tmp_path):
    """Everything that Pillow opens, resized to one size, squeezed where it is not square."""
    source = tmp_path / "b"
    wide = noise(5, height=6, width=30)
    for form in ("BMP", "GIF", "JPEG", "PPM", "TIFF", "WEBP"):
        put(source / form / f"one.{form.lower()}", encoded(wide, form))
    put(source / "png" / "ONE.PNG", encoded(wide))
    store = prepare_folder(source, tmp_path / "s", name="b", size=12)
    assert store.shape == (3, 12, 12)
    expected = np.asarray(Image.fromarray(wide).resize((12, 12), Image.Resampling.LANCZOS))
    for form in ("BMP", "PPM", "TIFF", "png"):
        image = store.images(store.classes.index(form))[0]
        assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
    unsized = prepare_folder(source, tmp_path / "t", name="b")
    assert unsized.shape == (3, 6, 30)
    put(source / "png" / "two.png", encoded(noise(6, height=7, width=30)))
    with pytest.raises(WarpgradError, match=r"b/png/two\.png is 30×7, but others are 30×6: choose one size .* --size"):
        prepare_folder(source, tmp_path / "u", name="b")


def test_grey_where_all_are_and_where_asked(tmp_path):
    source = folders(tmp_path / "b", channels=1)
    grey = prepare_folder(source, tmp_path / "grey", name="b")
    assert grey.shape == (1, 8, 8)
    assert np.array_equal(grey.images(4)[1, 0].numpy(), noise(4, 1, channels=1))
    put(source / "class09" / "colour.png", encoded(noise(0)))
    mixed = prepare_folder(source, tmp_path / "mixed", name="b")
    assert mixed.shape == (3, 8, 8)
    assert np.array_equal(mixed.images(4)[1].numpy(), np.stack([noise(4, 1, channels=1)] * 3))
    asked = prepare_folder(source, tmp_path / "asked", name="b", grey=True)
    assert asked.shape == (1, 8, 8)
    assert np.array_equal(asked.images(9)[2, 0].numpy(), np.asarray(Image.fromarray(noise(0)).convert("L")))


def decoded(raw: bytes, channels: int = 3) -> np.ndarray:
    return np.asarray(read_picture(raw, "it", "fix it", channels=channels))


def test_pictures_are_upright_solid_and_whole():
    pixels_there = noise(1, height=4, width=6)
    exif = Image.Exif()
    exif[274] = 6
    lying = encoded(pixels_there, exif=exif)
    assert image_header(lying, "it", "") == ((4, 6), False)
    assert np.array_equal(decoded(lying), np.rot90(pixels_there, -1)), "turned by a quarter, clockwise"
    clear = np.dstack([pixels_there, np.full((4, 6), 0, dtype=np.uint8)])
    assert (decoded(encoded(clear)) == 255).all(), "what is transparent is white, not its hidden colour"
    bits = Image.fromarray(noise(2, channels=1) > 127).convert("1")
    assert image_header(encoded(bits), "it", "").grey
    assert len(np.unique(pixels(read_picture(encoded(bits), "it", "", channels=1), 5))) > 2, "not nearest neighbour"
    palette = Image.fromarray(pixels_there).convert("P", palette=Image.Palette.ADAPTIVE)
    assert np.array_equal(decoded(encoded(palette)), np.asarray(palette.convert("RGB")))
    assert pixels(read_picture(encoded(pixels_there), "it", "", channels=3)).shape == (3, 4, 6)


@pytest.mark.parametrize("raw", [b"", b"no picture", encoded(noise(0))[:60], b"P6\n2x 2\n255\n" + bytes(12)])
def test_a_picture_that_cannot_be_read_is_one_sentence(raw):
    with pytest.raises(WarpgradError, match=r"^it is not a readable image \(.*\): fix it\.$"):
        decoded(raw)


def test_an_unreadable_picture_is_named_and_nothing_is_left(tmp_path):
    source = folders(tmp_path / "raw" / "b")
    put(source / "class05" / "1.png", "no picture")
    with pytest.raises(WarpgradError, match=r"b: b/class05/1\.png is not a readable image .*: fix or remove that file"):
        prepare_folder(source, tmp_path / "deep" / "s", name="b")
    # Its head is whole, so it is noticed only when its pixels are read, and the half-written set is removed.
    put(source / "class05" / "1.png", encoded(noise(1, height=80, width=80))[:2000])
    with pytest.raises(WarpgradError, match=r"class05/1\.png is not a readable image"):
        prepare_folder(source, tmp_path / "deep" / "s", name="b", size=8)
    put(source / "class05" / "1.png", encoded(Image.fromarray(np.zeros((8, 8), dtype=np.uint16))))
    with pytest.raises(WarpgradError, match="more than 8 bits per pixel and channel: convert it"):
        prepare_folder(source, tmp_path / "deep" / "s", name="b")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_link_to_nowhere_that_nobody_needs_is_no_obstacle(tmp_path):
    source = folders(tmp_path / "b")
    (source / "class00" / ".#notes.txt").symlink_to("nobody@nowhere")
    assert len(prepare_folder(source, tmp_path / "s", name="b")) == 10


def test_an_interrupted_run_goes_on_unless_a_picture_has_changed(tmp_path):
    source = folders(tmp_path / "b")

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_folder(source, tmp_path / "out" / "s", name="b", progress=stop)
    assert not (tmp_path / "out" / "s").exists()
    changed = next((source / "class00").iterdir())
    put(changed, encoded(noise(99)))
    os.utime(changed, ns=(1, 1))
    store = prepare_folder(source, tmp_path / "out" / "s", name="b")
    assert (len(store), [path.name for path in store.path.parent.iterdir()]) == (10, ["s"])
    unbroken = prepare_folder(source, tmp_path / "again", name="b")
    assert store.header == unbroken.header
    with pytest.raises(WarpgradError, match="already exists"):
        prepare_folder(tmp_path / "nowhere", tmp_path / "out" / "s", name="b")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["notes.txt"], "has no images in class folders"),
        (["one.png", "two.png"], "has no images in class folders"),
        (["a/1.png", "b/1.png"], "has 2 classes; 3 or more are needed"),
        (["a/x/1.png", "b/1.png", "c/1.png"], r"b/a/x/1\.png is not in a class folder"),
        (["train/a/1.png", "test/b/1.png"], "the split validation has no classes"),
        (["train/a/1.png", "train/b/1.png"], "the split validation has no classes"),
        (["train/a/1.png", "val/a/1.png", "test/b/1.png"], "the class 'a' is both in train and in validation"),
        (["a/1.png", "b/1.png", "c/1.png", "train.txt"], r"has split files, but no val\.txt"),
    ],
)
def test_layouts_that_say_nothing_clear_are_refused(tmp_path, files, message):
    for file in files:
        put(tmp_path / "b" / file, encoded(noise(0)) if file.endswith("png") else "a")
    with pytest.raises(WarpgradError, match=message):
        prepare_folder(tmp_path / "b", tmp_path / "s", name="b")
    assert not (tmp_path / "s").exists()


def test_a_class_may_be_called_train(tmp_path):
    """CIFAR-100 has one."""
    store = prepare_folder(folders(tmp_path / "b", ["apple", "bear", "train"]), tmp_path / "s", name="b")
    assert store.classes == ("apple", "bear", "train")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "omniglot", "CIFAR-FS"])
def test_names_that_mislead_are_refused(tmp_path, name):
    with pytest.raises(WarpgradError, match="cannot be the name of your own data set"):
        prepare_folder(folders(tmp_path / "b"), tmp_path / "s", name=name)


def test_size_and_source_are_checked_first(tmp_path):
    with pytest.raises(WarpgradError, match="images of 0×0"):
        prepare_folder(tmp_path, tmp_path / "s", name="b", size=0)
    with pytest.raises(WarpgradError, match="nowhere does not exist"):
        prepare_folder(tmp_path / "nowhere", tmp_path / "s", name="b")
    assert list(tmp_path.iterdir()) == []

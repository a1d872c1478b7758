"""Omniglot's published tree, small: drawings are two strokes that vary with their place in the tree."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import pytest
from PIL import Image, ImageDraw


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


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

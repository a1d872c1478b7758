"""The paper's presets of mini- and tieredImageNet, on small data sets in the published forms of both."""

from __future__ import annotations

import csv
import dataclasses
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from warpgrad.data import ImageStore
from warpgrad.data.sources.mini_imagenet import MiniContents, prepare_mini_imagenet
from warpgrad.data.sources.tiered_imagenet import prepare_tiered_imagenet
from warpgrad.experiments.base import Execution
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.runner import execute
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import newest_checkpoint

EXPERIMENT = FewShot()
FILES = {"train": "train", "validation": "val", "test": "test"}
WAYS, IMAGES = 5, 30
"""As many classes and images as an episode of 5-shot meta-training takes: 15 shots and 15 query images."""
PAPER = [table for table in EXPERIMENT.tables if table.preset == "paper"]
ROWS = [
    (table.name, row)
    for table in PAPER
    for row in table.rows
    if row.label == "Warp-MAML" or table.name == "few-shot-mini-1shot"
]
"""Every method on one table, Warp-MAML on all four."""


def picture(split: str, label: int, number: int) -> np.ndarray:
    draw = np.random.default_rng([len(split), label, number])
    return draw.integers(0, 256, (84, 84, 3), dtype=np.uint8)


def mini_as_pictures(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    for split, name in FILES.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["filename", "label"])
            for label in range(WAYS):
                for number in range(IMAGES):
                    table.writerow([f"{name}{label}-{number}.png", f"n-{name}-{label}"])
                    image = Image.fromarray(picture(split, label, number))
                    image.save(folder / "images" / f"{name}{label}-{number}.png")
    return folder


def tiered_as_pickles(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for split, name in FILES.items():
        encoded = []
        for label in range(WAYS):
            for number in range(IMAGES):
                buffer = io.BytesIO()
                Image.fromarray(picture(split, label, number)).save(buffer, format="PNG")
                encoded.append(np.frombuffer(buffer.getvalue(), dtype=np.uint8)[:, None])
        labels = {
            "label_specific": np.repeat(np.arange(WAYS), IMAGES),
            "label_general": np.zeros(WAYS * IMAGES, dtype=np.int64),
            "label_specific_str": [f"{name} class {label}" for label in range(WAYS)],
            "label_general_str": [f"{name} things"],
        }
        (folder / f"{name}_images_png.pkl").write_bytes(pickle.dumps(encoded, 2))
        (folder / f"{name}_labels.pkl").write_bytes(pickle.dumps(labels, 2))
    return folder


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, ImageStore]:
    place, sizes = tmp_path_factory.mktemp("imagenet"), dict.fromkeys(FILES, WAYS)
    contents = MiniContents(sizes, IMAGES)
    mini = prepare_mini_imagenet(mini_as_pictures(place / "raw-mini"), place / "mini", _contents=contents)
    tiered = prepare_tiered_imagenet(tiered_as_pickles(place / "raw-tiered"), place / "tiered", _sizes=sizes)
    return {"mini-imagenet": mini, "tiered-imagenet": tiered}


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = read_checkpoint(newest_checkpoint(run))["weights"]["module"]
    return found


def test_the_small_sets_have_the_form_of_the_large_ones(stores):
    for store in stores.values():
        assert store.shape == (3, 84, 84)
        assert {split: len(store.split(split)) for split in FILES} == dict.fromkeys(FILES, WAYS)
    assert stores["tiered-imagenet"].groups[0] == "train things"


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}, {row.label}" for name, row in ROWS])
def test_a_row_takes_a_meta_step_and_goes_on(stores, tmp_path, name, row):
    """A row of a table, but for its width, where its data lie, and how often it steps, validates and tests."""
    settings = row.settings_at("paper")
    changes = {"data": str(stores[settings["data"]].path), "meta_steps": 1, "validate_every": 1,
               "validation_episodes": 1, "test_episodes": 2, "filters": 2}  # fmt: skip
    config = EXPERIMENT.config("paper", **{**settings, **changes})
    summary = execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    assert (summary["steps"], summary["preset"], summary["method"]) == (1, "paper", settings["method"])
    more = dataclasses.replace(config, meta_steps=2)
    assert EXPERIMENT.train(more, Execution(tmp_path / "run", progress=False)) == 2
    assert EXPERIMENT.train(more, Execution(tmp_path / "straight", progress=False)) == 2
    resumed, straight = weights_of(tmp_path / "run"), weights_of(tmp_path / "straight")
    assert all(torch.equal(value, resumed[name]) for name, value in straight.items())

"""The alphabets experiment at a tiny size: a drawn store, settings, runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.tasks.test_alphabets import tiny_store
from tests.support.experiment_runs import Runs
from warpgrad.experiments.base import Execution
from warpgrad.experiments.omniglot.config import OmniglotConfig
from warpgrad.experiments.omniglot.experiment import Omniglot
from warpgrad.experiments.runner import execute

EXPERIMENT = Omniglot()
TINY = {
    "tasks": 2, "held_out": 2, "characters": 6, "train_drawings": 4, "test_drawings": 2, "filters": 4, "batch_size": 6,
    "meta_batch": 3, "steps": 3, "maml_steps": 2, "meta_steps": 1, "validate_every": 1, "validation_tasks": 1,
    "test_batch": (8, 5), "test_steps": 4, "test_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("store"), alphabets=6)


@pytest.fixture(scope="module")
def tiny(store):
    def make(**changes) -> OmniglotConfig:
        return EXPERIMENT.config("small", **{**TINY, "data": str(store.path), **changes})

    return make


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory) -> Runs:
    return Runs(EXPERIMENT, tiny, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def more_tasks(tiny, tmp_path_factory) -> Path:
    """Leap on one alphabet more, which leaves one for validation."""
    path = tmp_path_factory.mktemp("more") / "leap"
    execute(EXPERIMENT, tiny(method="leap", tasks=3), Execution(path, progress=False))
    return path

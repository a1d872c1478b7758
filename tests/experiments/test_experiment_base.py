"""What every experiment has for nothing: settings held to the bounds of their fields, a page, and lines."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import tyro

from tests.support.report_pages import Parsed
from warpgrad.errors import WarpgradError
from warpgrad.experiments import EXPERIMENTS
from warpgrad.experiments.base import (
    Bound,
    Config,
    Declaration,
    Execution,
    Experiment,
    Group,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    require_bounds,
)
from warpgrad.report import Run


@dataclass(frozen=True)
class PlainConfig(Config):
    method: str = "new"
    steps: PositiveInt = 5
    lr: PositiveFloat = 0.1
    warm_up: NonNegativeInt = 0
    strength: NonNegativeFloat = 0.0
    momentum: Annotated[NonNegativeFloat, Bound("it must be below 1", below=1)] = 0.0
    clip: PositiveFloat | None = None


class Plain(Experiment[PlainConfig]):
    """The least that an experiment has to say."""

    declaration = Declaration("plain", "nowhere", "for the tests", ("new", "old"), {"paper": PlainConfig()})

    def train(self, config: PlainConfig, execution: Execution) -> int:
        raise NotImplementedError

    def evaluate(self, config: PlainConfig, directory: Path) -> dict[str, Any]:
        raise NotImplementedError


def group(method: str, better: float) -> Group:
    runs, evaluations = [], []
    for seed in range(4):
        summary = {"experiment": "plain", "method": method, "preset": "paper", "seed": seed, "steps": 3}
        metrics = [{"step": step, "meta_loss": 3.0 - step} for step in range(3)]
        runs.append(Run(Path(f"{method}-{seed}"), {"method": method, "seed": seed}, summary, metrics))
        tasks = {f"task {i}": 60.0 + better + i + seed for i in range(3)}
        evaluations.append({"accuracy": tasks, "tested_at": [0, 5], "curve": [20.0, 61.0 + better + seed]})
    return Group(method, tuple(runs), tuple(evaluations), paper=70.0 if better else None)


def test_an_experiment_that_says_no_more_has_a_page_and_lines():
    groups = [group("new", 10.0), group("old", 0.0)]
    header, rows = Plain().lines(groups)
    assert header == ["plain", "accuracy % [95 % interval]", "minus new", "paper"]
    assert [(row[0], row[3]) for row in rows] == [("new", "70"), ("old", "")]
    assert rows[1][2].startswith("−10")
    page = Parsed(Plain().page(groups, "A table").html())
    for words in ("A table", "Experiment plain (nowhere)", "Accuracy after adaptation", "minus new", "paper 70"):
        assert words in page.text
    assert "Learning curves" in page.text
    assert "Meta-training" in page.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0: it must be at least 1."),
        ({"lr": 0.0}, "lr=0.0: it must be finite and greater than 0."),
        ({"lr": math.inf}, "lr=inf: it must be finite and greater than 0."),
        ({"lr": math.nan}, "lr=nan: it must be finite and greater than 0."),
        ({"warm_up": -1}, "warm_up=-1: it must be at least 0."),
        ({"strength": math.inf}, "strength=inf: it must be finite and at least 0."),
        ({"momentum": -0.1}, "momentum=-0.1: it must be finite and at least 0."),
        ({"momentum": 1.0}, "momentum=1.0: it must be below 1."),
        ({"clip": 0.0}, "clip=0.0: it must be finite and greater than 0."),
    ],
)
def test_a_setting_out_of_the_bounds_of_its_field_is_refused_by_name(change, message):
    with pytest.raises(WarpgradError) as refused:
        Plain().config("paper", **change)
    assert str(refused.value) == message


def test_settings_within_their_bounds_pass():
    given = {"steps": 1, "warm_up": 3, "momentum": 0.99, "clip": 1.0}
    assert Plain().config("paper", **given) == dataclasses.replace(PlainConfig(), **given)
    assert Plain().config("paper").clip is None


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_preset_is_within_its_bounds(name):
    for config in EXPERIMENTS[name].presets.values():
        require_bounds(config)


def test_the_command_line_reads_bounded_fields_like_plain_ones():
    words = ["--steps", "7", "--clip", "2", "--momentum", "0.5"]
    assert tyro.cli(PlainConfig, args=words) == PlainConfig(steps=7, clip=2.0, momentum=0.5)

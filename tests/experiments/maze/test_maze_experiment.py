"""The maze experiment from settings to page, at tiny sizes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import warpgrad as wg
from warpgrad.experiments import runner
from warpgrad.experiments.base import Execution, Group
from warpgrad.experiments.maze.config import MazeConfig
from warpgrad.experiments.maze.evaluation import evaluated, search_times
from warpgrad.experiments.maze.experiment import MazeNavigation, build
from warpgrad.experiments.maze.page import PAPER, film_strip, return_curves
from warpgrad.experiments.maze.results import baseline_of, baseline_then, over_baseline, validation_returns
from warpgrad.maze import AGENTS, WARPED, Maze
from warpgrad.report.runs import read_run
from warpgrad.tasks.reinforcement import EpisodeFamily, episode_seeds
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import TIMES, newest_checkpoint

TINY = {
    "meta_steps": 4, "episodes": 3, "size": 5, "length": 12, "hidden": 6,
    "validate_every": 2, "validation_episodes": 4, "test_episodes": 5,
}  # fmt: skip


def tiny(method: str = "warp-rnn", **changes) -> MazeConfig:
    own = {"warp_every": 2} if method in WARPED else {}
    own |= {"context": 5} if method in ("warp-rnn", "hyperrnn") else {}
    return MazeNavigation().config("small", **{**TINY, **own, **changes, "method": method})


def weights(directory) -> dict[str, torch.Tensor]:
    return read_checkpoint(newest_checkpoint(directory), torch.device("cpu"))["weights"]["module"]


def metrics(directory) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def groups(tmp_path_factory) -> list[Group]:
    """Every row of the table, two seeds each."""
    experiment, root = MazeNavigation(), tmp_path_factory.mktemp("maze")
    found = []
    for row in experiment.tables[0].rows:
        runs, evaluations = [], []
        for seed in range(2):
            config = tiny(**row.settings, seed=seed)
            path = root / f"{config.method}-{config.clip}-{seed}"
            runner.execute(experiment, config, Execution(path, progress=False))
            runs.append(read_run(path))
            evaluations.append(json.loads((path / "evaluation.json").read_text()))
        found.append(Group(row.label, tuple(runs), tuple(evaluations), row.paper))
    return found


def test_the_paper_preset_is_the_papers():
    config = MazeNavigation().config("paper")
    assert dataclasses.asdict(config) == {
        "preset": "paper", "method": "warp-rnn", "seed": 0, "device": "cpu",
        "meta_steps": 200_000, "episodes": 30, "warp_every": 30, "lr": 1e-3, "meta_lr": 1e-3, "clip": 4.0,
        "size": 11, "length": 200, "reward": 10.0, "wall_penalty": 0.0,
        "discount": 0.9, "value": 0.1, "entropy": 0.03, "hidden": 100, "context": 100,
        "gate_bias": None, "transform": "identity",
        "validate_every": 100, "validation_episodes": 60, "test_episodes": 300,
    }  # fmt: skip
    small = MazeNavigation().config("small")
    differing = {field.name for field in dataclasses.fields(small)
                 if getattr(small, field.name) != getattr(config, field.name)}  # fmt: skip
    assert differing == {"preset", "meta_steps"}
    assert small.meta_steps == 20_000
    table = MazeNavigation().tables[0]
    assert list(dict.fromkeys(row.settings["method"] for row in table.rows)) == list(AGENTS)
    assert table.seeds == 10
    assert PAPER == ((60_000, 160.0, "Warp-RNN"), (100_000, 125.0, "best baseline"), (200_000, 150.0, "best baseline"))


def test_the_paper_preset_takes_an_update():
    """The real size: 30 episodes of 200 steps through the Warp-RNN, and Adam moves every part of θ but not φ."""
    method = build(MazeNavigation().config("paper"))
    before = {name: value.detach().clone() for name, value in method.learner.module.named_parameters()}
    wg.meta_train(
        method.learner, EpisodeFamily(30), algorithm=wg.Continual(tasks=1, batches=30), rule=method.rule,
        objective=method.objective, initialiser=method.initialiser, clip=4.0, meta_steps=1,
        optimiser=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )  # fmt: skip
    for name, value in method.learner.module.named_parameters():
        moved = (value.detach() - before[name]).abs().max()
        assert (moved > 0) == (name in method.learner.theta0), name
        assert moved < 1.01e-3


@pytest.mark.parametrize("method", ["warp-rnn", "retroactive-modulation"])
def test_a_run_stopped_anywhere_ends_with_the_same_bytes(method, tmp_path):
    """Stopped after 3 of 5 updates, in the middle of an accumulation of g_φ."""
    experiment, config = MazeNavigation(), tiny(method=method, meta_steps=5)
    experiment.train(config, Execution(tmp_path / "whole", progress=False))

    original, asked = EpisodeFamily.meta_batch, []

    def stopping(family, seed, size):
        asked.append(seed)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return original(family, seed, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpisodeFamily, "meta_batch", stopping)
        with pytest.raises(KeyboardInterrupt):
            experiment.train(config, Execution(tmp_path / "parts", progress=False))
        assert len(metrics(tmp_path / "parts")) == 3
        experiment.train(config, Execution(tmp_path / "parts", progress=False))
    assert len(asked) == 6
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")


def test_seeds_repeat_and_differ(groups):
    first, second = groups[0].runs
    assert metrics(first.path) != metrics(second.path)
    again = build(tiny(method="warp-rnn", seed=1)).learner.module.state_dict()
    other = build(tiny(method="warp-rnn", seed=2)).learner.module.state_dict()
    assert all(
        torch.equal(value, again[name]) for name, value in build(tiny(seed=1)).learner.module.state_dict().items()
    )
    assert not any(torch.equal(value, other[name]) for name, value in again.items())


def test_phi_learns_where_there_is_one_and_everything_else_is_theta(groups):
    for group in groups:
        config = tiny(method=group.runs[0].method)
        method, trained = build(config), weights(group.runs[0].path)
        assert (method.objective is not None) == (config.method in WARPED) == bool(method.learner.phi)
        start = method.learner.module.state_dict()
        for name in method.learner.phi:
            assert not torch.equal(start[name], trained[name]), name
        still = [name for name in method.learner.theta0 if torch.equal(start[name], trained[name])]
        # E and H begin at 0, so nothing that acts through them need have moved after so few short episodes.
        assert not set(still) - {"agent.eta", "agent.fan_out", "agent.modulator.weight", "agent.modulator.bias"}


def test_evaluation_is_of_held_out_episodes_and_against_policies_without_memory(groups):
    for group in groups:
        for evaluation in group.evaluations:
            found = evaluation["metrics"]
            returns = evaluation["returns"]
            assert returns.keys() == {"agent", "forgetting", "wandering", "random"}
            assert all(len(values) == 5 for values in returns.values())
            assert found["return"] == pytest.approx(np.mean(returns["agent"]))
            assert found["return/forgetting"] == pytest.approx(np.mean(returns["forgetting"]))
            assert sum(returns["agent"][:1]) == 10.0 * len(evaluation["film"]["found"])
        same = [item["returns"]["wandering"] for item in group.evaluations]
        assert same == [item["returns"]["wandering"] for item in groups[0].evaluations]
    memoryless = next(group for group in groups if group.label == "Memoryless")
    for evaluation in memoryless.evaluations:
        assert evaluation["returns"]["agent"] == evaluation["returns"]["forgetting"]


def test_search_times():
    found = np.zeros((10, 3), bool)
    found[[1, 4, 9], 0] = True
    found[6, 2] = True
    first, later = search_times(found)
    assert first.tolist() == [2, 10, 7]
    assert later.tolist() == [3, 5]


def test_the_page_and_the_table(groups, tmp_path):
    experiment = MazeNavigation()
    page = experiment.page(groups, "Return in the maze")
    text = page.write(tmp_path / "index.html").read_text()
    for word in ("preset small", "Warp-RNN", "T-Nets-RNN", "random moves", "State reset at every step", "not selected"):
        assert word in text
    assert "~160 at 60 000 updates" in text
    header, rows = experiment.lines(groups)
    assert len(rows) == len(groups) + 2
    assert all(len(row) == len(header) for row in rows)
    assert header[-1] == "over RNN, Adam 0.0003, clip 0.5", "the strongest of them"
    alone, _ = experiment.lines(groups[:1])
    assert alone == header[:-1]
    assert "One episode" in experiment.page(groups[:1], "one").html()
    for group in groups:
        assert f"{group.evaluations[0]['metrics']['parameters/task']}" in text
    assert "Over RNN" in text
    assert "ndicative" in text
    assert "without its state" in text


def test_runs_are_told_apart_and_compared_whatever_they_are_called(groups):
    """As `warpgrad report` has them: named after their method, the baseline found by it."""
    warp, rnn = (
        dataclasses.replace(group, label=f"{group.runs[0].method}, small")
        for group in (next(group for group in groups if group.label == label) for label in ("Warp-RNN", "RNN"))
    )
    slower = dataclasses.replace(
        rnn, runs=tuple(dataclasses.replace(run, config={**run.config, "lr": 1e-4}) for run in rnn.runs)
    )
    header, rows = MazeNavigation().lines([warp, rnn, slower])
    assert header[-1] == "over rnn, small, lr=0.001"
    assert [row[0] for row in rows[:3]] == ["warp-rnn, small", "rnn, small, lr=0.001", "rnn, small, lr=0.0001"]
    assert [bool(row[-1]) for row in rows[:3]] == [True, False, True]
    header, rows = MazeNavigation().lines([warp, dataclasses.replace(warp, label="another")])
    assert header[-1] == "over warp-rnn, small"
    other = tuple(dataclasses.replace(run, config={**run.config, "reward": 5.0}) for run in warp.runs)
    assert over_baseline(dataclasses.replace(warp, runs=other), rnn) is None


def test_an_agent_with_fewer_updates_stands_beside_the_baseline_of_that_time(groups):
    warp, rnn = (next(group for group in groups if group.label == label) for label in ("Warp-RNN", "RNN"))
    short = dataclasses.replace(
        warp, runs=tuple(dataclasses.replace(run, config={**run.config, "meta_steps": 2}) for run in warp.runs)
    )
    then = [metrics(run.path)[1]["validation/return"] for run in rnn.runs]
    assert baseline_then(short, rnn) == pytest.approx(np.mean(then))
    assert baseline_then(warp, rnn) is None


def test_differences_are_over_common_seeds_and_equal_updates(groups):
    warp, rnn = (next(group for group in groups if group.label == label) for label in ("Warp-RNN", "RNN"))
    one = dataclasses.replace(warp, runs=warp.runs[:1], evaluations=warp.evaluations[:1])
    found = over_baseline(one, rnn)
    seed = warp.runs[0].seed
    assert found.mean == pytest.approx(
        np.mean(warp.evaluations[0]["returns"]["agent"])
        - np.mean(
            next(
                item["returns"]["agent"]
                for run, item in zip(rnn.runs, rnn.evaluations, strict=True)
                if run.seed == seed
            )
        )
    )
    run = warp.runs[0]
    longer = dataclasses.replace(one, runs=(dataclasses.replace(run, config={**run.config, "meta_steps": 99}),))
    assert over_baseline(longer, rnn) is None
    assert baseline_of([longer, rnn]) is None
    assert baseline_of([longer, one, rnn]) is rnn
    header, rows = MazeNavigation().lines([longer, one, rnn])
    assert header[-1] == "over RNN"
    assert [row[1] for row in rows[:2]] == ["99", "4"]
    assert rows[0][-1] == ""
    assert rows[1][-1] != ""


def test_the_small_table_has_the_seeds_and_the_horizons_of_its_time():
    table = MazeNavigation().tables[0]
    seeds = {row.label: row.seeds["small"] for row in table.rows}
    assert {label for label, count in seeds.items() if count == 4} == {
        "Warp-RNN",
        "RNN",
        "RNN, Adam 0.0003, clip 0.5",
        "HyperRNN",
    }
    assert {row.settings_at("small").get("meta_steps") for row in table.rows} == {None, 10_000}
    assert all("meta_steps" not in row.settings_at("paper") for row in table.rows)


def test_curves_are_over_validation_episodes(groups):
    updates, values = validation_returns(groups[0])
    assert updates.tolist() == [2.0, 4.0]
    rows = metrics(groups[0].runs[1].path)
    assert values[1].tolist() == [row["validation/return"] for row in rows if "validation/return" in row]
    assert [one.name for one in return_curves(groups, {"random moves": 3.0}).series] == [
        group.label for group in groups
    ]
    short = Group("short", tuple(dataclasses.replace(run, metrics=run.metrics[:1]) for run in groups[0].runs), (), None)
    assert return_curves([short], {}) is None


def test_the_film_strip_needs_no_find():
    maze = Maze(size=5, length=4)
    for film in (
        {"goal": 3, "places": [8, 8, 7, 8], "found": []},
        {"goal": 3, "places": [8, 2, 9, 4], "found": [1, 3]},
    ):
        assert film_strip(maze, film, alt="Ways to the goal.").image.startswith(b"\x89PNG")


def test_options_change_what_they_name():
    assert "agent.cell.projection.bias" in build(tiny(gate_bias=1.0)).learner.phi
    assert "agent.cell.projection.bias" not in build(tiny()).learner.phi
    eye = build(tiny(method="t-nets-rnn")).learner.phi["agent.transforms.input"]
    assert torch.equal(eye, torch.eye(6))
    drawn = build(tiny(method="t-nets-rnn", transform="drawn")).learner.phi["agent.transforms.input"]
    assert not torch.equal(drawn, torch.eye(6))
    for change, words in (
        ({"size": 6}, "size=6"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"episodes": 0}, "episodes=0"),
        ({"reward": -5.0}, "reward=-5.0"),
        ({"discount": 2.0}, "discount=2.0"),
        ({"entropy": float("nan")}, "entropy=nan"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"gate_bias": float("nan")}, "gate_bias=nan"),
        ({"method": "rnn", "gate_bias": 1.0}, "rnn does not use gate_bias, a setting of warp-rnn, hyperrnn"),
        ({"method": "hebbian", "meta_lr": 0.1}, "hebbian does not use meta_lr"),
        ({"method": "lstm"}, "has no method 'lstm'"),
    ):
        with pytest.raises(wg.WarpgradError, match=words):
            tiny(**change)


@pytest.mark.slow
def test_an_rnn_learns_to_use_its_memory(tmp_path):
    """In a room of 3×3, with short episodes, a few thousand updates are enough to beat every walk without memory."""
    config = tiny(method="rnn", meta_steps=3000, episodes=30, size=3, length=40, hidden=48,
                  validate_every=1000, validation_episodes=100)  # fmt: skip
    experiment = MazeNavigation()
    experiment.train(config, Execution(tmp_path, progress=False))
    learner = build(config).learner
    learner.module.load_state_dict(weights(tmp_path))
    found = evaluated(learner, episode_seeds(300, "slow test"))["metrics"]
    assert found["return"] > 1.3 * found["return/wandering"]
    assert found["return"] > 1.3 * found["return/forgetting"]
    assert found["steps/later_finds"] < found["steps/first_find"]

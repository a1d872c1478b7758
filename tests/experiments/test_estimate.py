"""`warpgrad run … --estimate`: what is a count is exact, what is a time is a line in K."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import warpgrad as wg
from tests.support.omniglot_runs import store, tiny
from warpgrad.adaptation import traced as recording
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.experiments import EXPERIMENTS
from warpgrad.experiments.base import Config, Declaration, Execution, Experiment
from warpgrad.experiments.estimate import (
    COARSEST,
    FEWEST,
    MOST,
    CostEstimate,
    Sample,
    buffers_watched,
    estimate_cost,
    estimate_lines,
    extrapolated,
    fields_of,
    in_byte_unit,
    in_time_unit,
    on_line,
    repeats,
    shortened,
    steps_between,
    validated_in_sample,
)
from warpgrad.experiments.methods import Recipe
from warpgrad.experiments.omniglot.experiment import Omniglot
from warpgrad.experiments.runner import meta_trained, without_meta_training
from warpgrad.training.resources import Flops

__all__ = ["store", "tiny"]


@dataclass(frozen=True)
class ToyConfig(Config):
    method: str = "warp"
    steps: int = 7
    meta_batch: int = 3
    meta_steps: int = 50
    samples: int | None = 1
    share: float = 1.0
    validate_every: int = 10


class Toy(Experiment[ToyConfig]):
    """Algorithm 2 with momentum, so that entries hold θ and a rule state."""

    declaration = Declaration("toy", "nowhere", "for the tests", ("warp", "none"), {"paper": ToyConfig()})

    def __init__(self) -> None:
        super().__init__()
        self.validations: list[int] = []
        """K at every validation."""

    def train(self, config: ToyConfig, execution: Execution) -> int:
        if config.method == "none":
            return without_meta_training(self, config, execution)
        torch.manual_seed(config.seed)
        learner = wg.Learner(nn.Sequential(nn.Linear(3, 5), wg.Warp(nn.Linear(5, 5)), nn.Linear(5, 1)))
        tasks = [wg.SupervisedTask(torch.randn(8, 3), torch.randn(8, 1), F.mse_loss, batch_size=4) for _ in range(4)]
        algorithm = wg.Offline(
            steps=config.steps, tasks=config.meta_batch, samples=config.samples, share=config.share, backend="loop"
        )
        method = Method(learner, wg.SGD(0.01, momentum=0.9), wg.Exact())
        return meta_trained(
            self,
            config,
            execution,
            Recipe(method, algorithm, partial(torch.optim.SGD, lr=0.01)),
            wg.TaskList(tasks),
            validate=lambda learner: self.validations.append(config.steps) or {"score": 1.0},
            validate_every=config.validate_every or 10**9,
        )

    def evaluate(self, config, directory):
        raise NotImplementedError

    page = lines = evaluate


def test_the_replay_buffer_is_estimated_to_the_byte(tmp_path):
    config = ToyConfig()
    found = estimate_cost(
        Toy(), config, budget=0.0
    )  # nothing can be paid: two tasks, K = 2, and the rest is extrapolated
    with buffers_watched() as buffers:
        Toy().train(dataclasses.replace(config, meta_steps=1), Execution(tmp_path / "real"))
    ((entries, entry_bytes, _),) = buffers
    assert entries == config.steps * config.meta_batch
    assert (found.buffer_entries, found.buffer_bytes) == (entries, entries * entry_bytes)
    assert not found.buffer_on_disk
    assert found.peak_bytes > found.buffer_bytes


@pytest.mark.parametrize(("steps", "share"), [(4, 1.0), (10, 0.2), (3, 0.5)])
def test_flops_are_those_of_a_real_meta_step(tmp_path, steps, share):
    """With a share too, of which the short meta-steps of an estimate would round up to a whole point."""
    config, counts = ToyConfig(steps=steps, share=share, meta_batch=2), []
    for meta_steps in (1, 2):
        with FlopCounterMode(display=False) as counter:
            Toy().train(dataclasses.replace(config, meta_steps=meta_steps), Execution(tmp_path / f"{meta_steps}"))
        counts.append(counter.get_total_flops())
    assert counts[1] > counts[0] > 0
    assert estimate_cost(Toy(), config, budget=0.0).flops_per_meta_step == counts[1] - counts[0]


def test_the_points_that_a_share_replays_are_estimated_exactly(tmp_path):
    config = ToyConfig(steps=20, meta_batch=3, share=0.2)
    found = estimate_cost(Toy(), config, budget=0.0)
    with buffers_watched() as buffers:
        Toy().train(dataclasses.replace(config, meta_steps=1), Execution(tmp_path / "real"))
    assert found.buffer_entries == buffers[0][0] == 12
    assert [steps_between(config, tasks) for tasks in (1, 2, 5)] == [5, 5, 1]
    assert steps_between(ToyConfig(), 2) == steps_between(Config(), 2) == 1
    assert steps_between(ToyConfig(share=1 / math.e), 2) == COARSEST


@pytest.mark.parametrize(("validate_every", "validates"), [(0, False), (51, False), (50, True), (10, True)])
def test_a_validation_that_the_run_does_not_make_is_not_made_for_the_estimate(validate_every, validates):
    """A validation can take more memory than all of meta-training, so it must not be among the samples then."""
    toy = Toy()
    found = estimate_cost(toy, ToyConfig(validate_every=validate_every), budget=0.0)
    assert bool(toy.validations) == validates
    assert found.seconds >= 50 * found.seconds_per_meta_step


def test_the_alphabets_experiment_is_estimated_with_its_validations(tiny):
    """They take steps of their own, whatever K is: fewer in a sample, and multiplied up."""
    config = tiny(meta_steps=6, validate_every=3, test_steps=40, share=0.5)
    fields = fields_of(Omniglot(), config)
    assert validated_in_sample(config, fields) == {"validation_tasks": 1, "test_steps": 10}
    with_them = estimate_cost(Omniglot(), config, budget=0.0)
    assert with_them.buffer_entries == 4  # half of 3 tasks × 3 steps, rounded
    none = estimate_cost(
        Omniglot(), tiny(meta_steps=6, tasks=4, validate_every=0, test_steps=40, share=0.5), budget=0.0
    )
    assert with_them.seconds > none.seconds


def test_products_are_counted_where_a_leaf_enters_a_module():
    layer, leaf = nn.Linear(3, 2, bias=False), torch.ones(5, 3, requires_grad=True)
    with Flops() as counter:
        (slope,) = torch.autograd.grad(layer(leaf).square().sum(), leaf, create_graph=True)
        assert counter.total == 2 * (2 * 5 * 3 * 2)  # forwards, and backwards to the input alone
        slope.sum().backward()
    # For the input: through both products; for the weight: from both.
    assert counter.total == 2 * (2 * 5 * 3 * 2) + 4 * (2 * 5 * 3 * 2)


def test_totals_are_meta_steps_times_their_time_and_validations():
    found = estimate_cost(Toy(), ToyConfig(), budget=0.0)
    assert found.meta_steps == 50
    assert found.seconds >= 50 * found.seconds_per_meta_step > 0
    assert found.serial
    assert not estimate_cost(Toy(), ToyConfig(samples=None), budget=0.0).serial


def test_short_meta_steps_are_timed_more_often_than_dear_ones():
    assert [repeats(60.0, seconds) for seconds in (0.01, 1.0, 4.0, 100.0)] == [MOST, 20, 5, FEWEST]
    assert repeats(0.0, 0.01) == FEWEST


def test_the_first_meta_step_is_paid_once_and_not_taken_for_the_others(tmp_path):
    """A run whose first meta-step takes half a second more, and whose validations take a tenth."""

    class Slow(Toy):
        def train(self, config: ToyConfig, execution: Execution) -> int:
            done = super().train(config, execution)
            path = execution.directory / "metrics.jsonl"
            records = [json.loads(each) for each in path.read_text().splitlines()]
            for place, record in enumerate(records):
                record["seconds"] = 0.01 * config.steps + 0.5 * (place == 0)
                if (place + 1) % config.validate_every == 0:
                    record["validation_seconds"] = 0.1
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            return done

    found = estimate_cost(Slow(), ToyConfig(meta_batch=2), budget=1.0)
    assert found.seconds_per_meta_step == pytest.approx(0.07)
    assert found.seconds == pytest.approx(0.5 + 50 * 0.07 + 5 * 0.1)


def test_tests_on_the_way_are_paid_for_too():
    """5 of the 20 validation tasks are validated in a sample, in a tenth of a second; tests cost as much for each."""
    multi_shot = EXPERIMENTS["multi-shot"]
    changes = {"validation_tasks": 20, "meta_steps": 40, "validate_every": 20, "test_curve_tasks": 30}
    off, on = (multi_shot.config("paper", **changes, test_curve_every=every) for every in (0, 10))
    fields = fields_of(multi_shot, on)
    found = Sample(2, 1.0, 0.0, 0.1, 0, 0, 0, 0)
    without, with_tests = (extrapolated(config, fields, 2, 5, 1.0, [found], 0.0).seconds for config in (off, on))
    assert without == pytest.approx(40 + 2 * 0.1 * 20 / 5)
    assert with_tests - without == pytest.approx(4 * 0.1 * 30 / 5)
    assert shortened(on, fields, 2, 2, 3, validated=True).test_curve_every == 0


def test_samples_record_at_once_and_leave_patience_as_it_was():
    patience = recording.PATIENCE
    with recording.traced_at_once():
        assert recording.PATIENCE == 0
    assert recording.PATIENCE == patience > 0


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    close = wg.ReplayBuffer.close
    lines = estimate_lines(Toy(), ToyConfig(), flops=1e9, ranks=2, budget=0.0)
    assert list(tmp_path.iterdir()) == []
    assert wg.ReplayBuffer.close is close
    assert lines[0].startswith("toy, warp, preset paper")
    assert any("21 points" in each for each in lines)
    assert "at least: with η = 1" in lines[-1]


def test_a_method_that_trains_nothing_and_a_setting_that_is_missing_are_named():
    with pytest.raises(WarpgradError, match="method none meta-trains nothing"):
        estimate_cost(Toy(), ToyConfig(method="none"), budget=0.0)
    with pytest.raises(WarpgradError, match="toy cannot be estimated: it has no setting 'steps'"):
        fields_of(Toy(), Config(method="warp"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_names_fields_it_has(name):
    experiment = EXPERIMENTS[name]
    for config in experiment.presets.values():
        for method in experiment.methods:
            fields = fields_of(experiment, dataclasses.replace(config, method=method))
            assert fields.steps == "maml_steps" or method != "maml" or not hasattr(config, "maml_steps")


def test_a_line_through_two_samples_never_starts_below_zero():
    assert on_line([2, 4], [5.0, 9.0], 10) == pytest.approx(21.0)  # 1 + 2 x
    assert on_line([2, 4], [1.0, 9.0], 10) == pytest.approx(22.5)  # would start at −7: in proportion instead
    assert on_line([2, 4], [9.0, 8.0], 10) == 8.0  # a cost that seems to fall
    assert on_line([3], [6.0], 10) == pytest.approx(20.0)
    assert on_line([1], [6.0], 1) == 6.0


def test_a_cluster_is_as_fast_as_its_rate_and_the_largest_share():
    known = CostEstimate(100, 5, 1.0, 100.0, 1, 0, 0, False, 2e9, False)
    assert known.cluster_seconds(1e9) == pytest.approx(200.0)
    assert known.cluster_seconds(1e9, 2) == pytest.approx(120.0)  # 3 of 5 tasks
    assert known.cluster_seconds(1e9, 5) == known.cluster_seconds(1e9, 50) == pytest.approx(40.0)
    with pytest.raises(WarpgradError, match="flops must be above 0"):
        known.cluster_seconds(0.0)
    assert "replay buffer         none" in known.lines()


def test_units():
    assert [in_time_unit(value) for value in (0.5, 150, 9000, 400_000)] == ["0.5 s", "2.5 min", "2.5 h", "4.6 days"]
    assert [in_byte_unit(value) for value in (10, 2500, 3e6, 4.5e9)] == ["10 bytes", "2.50 kB", "3.00 MB", "4.50 GB"]

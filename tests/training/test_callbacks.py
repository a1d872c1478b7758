"""Callbacks hear of a training from its start to its end, and may stop it."""

from __future__ import annotations

import json

import pytest
import torch

import warpgrad as wg
from tests.support.own_program import FAMILY, own_learner, own_training
from warpgrad.training import MLflowLogger, TensorBoardLogger, WandbLogger


class Diary(wg.Callback):
    def __init__(self, stop_at: str | None = None) -> None:
        self.lines: list = []
        self.stop_at = stop_at

    def _note(self, *entry) -> None:
        self.lines.append(entry)
        if entry[0] == self.stop_at:
            raise wg.StopTraining(f"enough at {entry[0]}")

    def on_start(self, training):
        self._note("start", training.step, training.meta_steps, training.settings.get("rule"))

    def on_step(self, step, learner, record):
        assert isinstance(learner, wg.Learner)
        self._note("step", step, record["step"])

    def on_validate(self, step, learner, scores):
        self._note("validate", step, dict(scores))

    def on_end(self, training):
        self._note("end", training.step, training.stopped)


def validate(learner):
    return {"loss": 1.5}


def test_every_hook_is_called_in_order(tmp_path):
    diary = Diary()
    own_training(tmp_path / "run", 3, validate=validate, validate_every=2, callbacks=[diary])
    assert diary.lines == [
        ("start", 0, 3, "SGD"), ("step", 1, 0), ("validate", 2, {"loss": 1.5}), ("step", 2, 1), ("step", 3, 2),
        ("end", 3, None),
    ]  # fmt: skip
    again = Diary()
    own_training(tmp_path / "run", 3, callbacks=[again])
    assert again.lines == [("start", 3, 3, "SGD"), ("end", 3, None)]


@pytest.mark.parametrize(("hook", "steps"), [("start", 0), ("validate", 2), ("step", 1)])
def test_each_hook_may_stop_the_training(tmp_path, hook, steps):
    stopping, other = Diary(hook), Diary()
    _, records = own_training(tmp_path / "run", 9, validate=validate, validate_every=2, callbacks=[stopping, other])
    assert len(records) == steps
    assert records.stopped == f"enough at {hook}"
    assert other.lines[-1] == ("end", steps, f"enough at {hook}")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == records.stopped
    # What was done is on disk, and the same call without it goes on.
    _, more = own_training(tmp_path / "run", 9)
    assert len(more) == 9


def test_a_plain_function_may_stop_too_and_the_rest_still_hear():
    seen = []

    def enough(step, learner, record):
        raise wg.StopTraining("at once")

    _, records = own_training(meta_steps=5, callbacks=[enough, lambda step, learner, record: seen.append(step)])
    assert (len(records), records.stopped, seen) == (1, "at once", [1])


def test_the_end_is_told_whatever_it_is():
    diary = Diary()

    def interrupt(step, learner, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_training(meta_steps=5, callbacks=[diary, interrupt])
    assert diary.lines[-1] == ("end", 1, "interrupted")
    diary = Diary()
    with pytest.raises(wg.NonFiniteError):
        own_training(meta_steps=9, callbacks=[diary], rule=wg.SGD(1e30))
    assert diary.lines[-1][0] == "end"
    assert "not finite" in diary.lines[-1][2] or "is inf" in diary.lines[-1][2] or "is nan" in diary.lines[-1][2]


def test_what_is_no_callback_is_refused():
    for wrong, words in [(Diary, "contains Diary, which is neither"), (3, r"callbacks\[0\] must be .* not 3")]:
        with pytest.raises(wg.WarpgradError, match=words):
            own_training(callbacks=[wrong])


def test_records_carry_step_sizes_and_gradient_norms():
    schedule = lambda optimiser: torch.optim.lr_scheduler.StepLR(optimiser, 1, 0.5)  # noqa: E731
    _, records = own_training(meta_steps=2, schedule=schedule)
    assert [record["lr/phi"] for record in records] == [0.01, 0.005]
    method = wg.Method(own_learner(), wg.SGD(0.1), wg.Exact(), wg.Leap())
    from warpgrad.keys import fold

    found = wg.meta_gradient(method, FAMILY, fold(0, 0), algorithm=wg.Online(steps=2, tasks=2))
    for group in ("phi", "theta0"):
        norm = torch.nn.utils.get_total_norm(list(found.groups[group].values()))
        assert records[0][f"gradient_norm/{group}"] == float(norm)


def test_tensorboard_has_every_number_once_though_a_run_was_stopped(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in (2, 4):
        own_training(tmp_path / "run", steps, callbacks=[TensorBoardLogger(tmp_path / "events")])
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [event.step for event in events.Scalars("gradient_norm/phi")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("logger", "module"), [(WandbLogger, "wandb"), (MLflowLogger, "mlflow")])
def test_a_logger_that_is_not_installed_is_named(logger, module, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(wg.WarpgradError, match=rf"{module} is not installed: pip install 'warpgrad\[{module}\]'"):
        logger("mine")

"""Runs that are killed, stopped, extended, starved of disk or fed with NaN."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import warpgrad as wg
from tests.support import ROOT
from tests.support.problems import make_task, mlp
from tests.support.training_job import score, train
from warpgrad.io import PARTIAL, write_bytes
from warpgrad.training import checkpoint
from warpgrad.training.run_directory import TIMES, RunDirectory

JOB = ROOT / "tests" / "support" / "training_job.py"


def lines(run: Path) -> list[dict]:
    """Records of a run without their times."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def final(run: Path) -> dict:
    state = checkpoint.read_checkpoint(sorted((run / "checkpoints").glob("step-*"))[-1])
    for name in ("seconds", "offset", "digest"):  # of lines that contain times, and scores that choose nothing
        state.pop(name)
    return state


def equal(first, second) -> bool:
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return set(first) == set(second) and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second or (first != first and second != second)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("unbroken") / "run"
    train(str(run), 30)
    return run


def test_the_same_seed_gives_the_same_bytes(unbroken, tmp_path):
    train(str(tmp_path / "run"), 30)
    assert lines(tmp_path / "run") == lines(unbroken)
    assert equal(final(tmp_path / "run"), final(unbroken))


def test_a_run_killed_at_random_moments_ends_like_an_unbroken_one(unbroken, tmp_path):
    """SIGKILL again and again, at moments that fall into meta-steps, metrics and checkpoint writes alike."""
    run, dice, kills = tmp_path / "run", random.Random(4), 0
    for _ in range(40):
        job = subprocess.Popen([sys.executable, str(JOB), str(run), "30"])
        started = time.monotonic()
        while not (run / "metrics.jsonl").exists() and job.poll() is None and time.monotonic() - started < 60:
            time.sleep(0.01)
        try:
            job.wait(timeout=0.05 + 0.6 * dice.random())
            break
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)
            job.wait()
            kills += 1
    else:
        train(str(run), 30)
    assert kills >= 2
    assert lines(run) == lines(unbroken)
    assert equal(final(run), final(unbroken))
    assert not list(run.rglob(f"{PARTIAL}*"))


def test_a_kill_inside_a_checkpoint_write_leaves_the_one_before(unbroken, tmp_path):
    """The process dies after half of the bytes are on disk and before the rename."""
    run = tmp_path / "run"
    script = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support import training_job
from warpgrad import io as files
count, sync = 0, os.fsync
def dying(descriptor):
    global count
    count += 1
    if count == 9:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2); os.kill(os.getpid(), 9)
    sync(descriptor)
files.os = type("os", (), dict(vars(os), fsync=staticmethod(dying)))
training_job.train({str(run)!r}, 30)
"""
    died = subprocess.run([sys.executable, "-c", script], check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(list(run.rglob(f"{PARTIAL}*"))) == 1
    assert checkpoint.read_checkpoint(sorted((run / "checkpoints").glob("step-*"))[-1])["step"] < 30
    train(str(run), 30)
    assert not list(run.rglob(f"{PARTIAL}*"))
    assert lines(run) == lines(unbroken)
    assert equal(final(run), final(unbroken))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_and_stop(unbroken, tmp_path, number):
    """With checkpoints an hour apart, only the one written on the signal can save the work."""
    run = tmp_path / "run"
    job = subprocess.Popen([sys.executable, str(JOB), str(run), "100000", "3600"], stderr=subprocess.DEVNULL)
    started = time.monotonic()
    while time.monotonic() - started < 60:
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 3:
            break
        time.sleep(0.01)
    job.send_signal(number)
    code = job.wait(timeout=60)
    assert code == (143 if number == signal.SIGTERM else -signal.SIGINT)
    saved = final(run)
    assert saved["step"] == len(lines(run)) >= 3
    train(str(run), saved["step"] + 2)
    count = min(len(lines(run)), 30)
    assert lines(run)[:count] == lines(unbroken)[:count]


def test_a_finished_run_is_not_run_again_and_can_be_extended(unbroken, tmp_path):
    run = tmp_path / "run"
    learner, records = train(str(run), 10)
    before = (run / "metrics.jsonl").read_bytes()
    again, same = train(str(run), 10)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert same == records
    assert equal(dict(again.module.state_dict()), dict(learner.module.state_dict()))
    train(str(run), 30)
    assert lines(run) == lines(unbroken)
    kept = (run / "config.json").read_bytes()
    with pytest.raises(
        wg.WarpgradError, match="has taken 30 meta-steps, but only 10 were requested; request at least 30"
    ):
        train(str(run), 10)
    assert (run / "config.json").read_bytes() == kept


def test_other_settings_need_another_directory(tmp_path):
    run = str(tmp_path / "run")
    train(run, 2, config={"width": 16})
    with pytest.raises(wg.WarpgradError, match="has width = 16, not 32"):
        train(run, 2, config={"width": 32})
    with pytest.raises(wg.WarpgradError, match="has seed = 0, not 1"):
        train(run, 2, config={"width": 16}, seed=1)
    train(run, 1, config={"width": 32}, fresh=True)
    assert len(lines(tmp_path / "run")) == 1


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for fresh in (False, True):
        with pytest.raises(wg.WarpgradError, match="is not a run directory but contains files"):
            train(str(tmp_path), 1, fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_damaged_and_foreign_checkpoints_are_named(tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(str(run), 3)
    *earlier, newest = sorted((run / "checkpoints").glob("step-*"))
    whole = newest.read_bytes()
    for other in earlier:  # or the run would go on from there
        other.unlink()
    newest.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(wg.WarpgradError, match=r"step-00000003.safetensors is damaged .* start over with --fresh"):
        train(str(run), 3)
    import safetensors.torch

    newest.write_bytes(safetensors.torch.save({"x": torch.zeros(1)}))
    with pytest.raises(wg.WarpgradError, match="not a warpgrad checkpoint"):
        train(str(run), 3)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_FORMAT", 7)
    newest.write_bytes(checkpoint.packed({"step": 3}))
    monkeypatch.setattr(checkpoint, "CHECKPOINT_FORMAT", 1)
    with pytest.raises(wg.WarpgradError, match="has format 7, but this version reads format 1"):
        train(str(run), 3)
    newest.write_bytes(whole)
    other = wg.Learner(mlp())
    with pytest.raises(wg.WarpgradError, match="has algorithm = 'Offline', not 'Online'"):
        wg.meta_train(
            other, wg.FunctionFamily(lambda seed: make_task(mlp, seed)), algorithm=wg.Online(steps=1, tasks=1),
            rule=wg.SGD(0.1), objective=wg.Exact(), optimiser=partial(torch.optim.SGD, lr=0.1), meta_steps=3,
            run=run,
        )  # fmt: skip
    (run / "config.json").write_text('{"format": 9}')
    with pytest.raises(wg.WarpgradError, match="written by another version"):
        train(str(run), 3)
    (run / "config.json").write_text("{")
    with pytest.raises(wg.WarpgradError, match="cannot be read as JSON"):
        train(str(run), 3)


def test_two_processes_cannot_share_a_run(tmp_path):
    held = RunDirectory(tmp_path / "run", {})
    with pytest.raises(wg.WarpgradError, match="another process is running"):
        RunDirectory(tmp_path / "run", {})
    held.close()
    RunDirectory(tmp_path / "run", {}).close()


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(str(run), 3)
    before = final(run)
    replace = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(wg.WarpgradError, match=r"cannot write .*No space left on device; fix that and repeat"):
        train(str(run), 5)
    monkeypatch.setattr(os, "fsync", replace)
    assert equal(final(run), before)
    assert not list(run.rglob(f"{PARTIAL}*"))
    train(str(run), 5)
    assert len(lines(run)) == 5


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(wg.WarpgradError, match=r"cannot write .*file/run: Not a directory"):
        train(str(tmp_path / "file" / "run"), 1)


def test_writes_replace_whole_files(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_bytes(path, b"one")
    write_bytes(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["b.json"]


def test_nan_stops_the_run_with_names_and_keeps_the_last_good_checkpoint(tmp_path):
    class Rotting(wg.FunctionFamily):
        def meta_batch(self, seed, size):
            self.calls = getattr(self, "calls", 0) + 1
            batch = super().meta_batch(seed, size)
            if self.calls == 4:
                batch[1] = wg.SupervisedTask(torch.ones(4, 3).double(), torch.full((4, 2), 1e400).double(), F.mse_loss)
                batch[1].name = "rotten"
            return batch

    learner = wg.Learner(mlp())
    run = tmp_path / "run"
    with pytest.raises(wg.NonFiniteError, match="meta-step 3: the task loss of task 'rotten' is inf at step 0"):
        wg.meta_train(
            learner, Rotting(lambda seed: make_task(mlp, seed)), algorithm=wg.Online(steps=2, tasks=2, backend="loop"),
            rule=wg.SGD(0.1), objective=wg.Exact(), optimiser=partial(torch.optim.SGD, lr=0.1), meta_steps=9,
            run=run, checkpoint_seconds=3600,
        )  # fmt: skip
    saved = final(run)
    assert saved["step"] == 3 == len(lines(run))
    assert all(torch.isfinite(value).all() for value in saved["weights"]["module"].values())


def test_early_stopping_ends_with_the_best_parameters(tmp_path):
    scores = iter([5.0, 3.0, 4.0, 3.5, 9.0, 9.0])
    kept = []

    def validate(learner):
        kept.append(learner.module[0].weight.detach().clone())
        return {"loss": next(scores)}

    torch.manual_seed(0)
    learner = wg.Learner(mlp())
    records = wg.meta_train(
        learner, wg.FunctionFamily(lambda seed: make_task(mlp, seed)), algorithm=wg.Online(steps=2, tasks=2),
        rule=wg.SGD(0.1), objective=wg.Approximate(), initialiser=wg.Reptile(),
        optimiser=partial(torch.optim.SGD, lr=0.1), meta_steps=99,
        validate=validate, early_stopping=wg.EarlyStopping("loss", patience=2), run=tmp_path / "run",
    )  # fmt: skip
    assert [record["validation/loss"] for record in records] == [5.0, 3.0, 4.0, 3.5]
    assert torch.equal(learner.module[0].weight, kept[1])
    with pytest.raises(wg.WarpgradError, match="watches 'accuracy', but validation returned loss"):
        wg.EarlyStopping("accuracy", patience=1).watch().observe({"loss": 1.0})


def test_test_scores_on_the_way_are_recorded_and_choose_nothing(unbroken, tmp_path):
    """The best by the test is the first; the run ends with the bytes of one that never tested, killed or not."""
    seen = []

    def tested(learner):
        seen.append(score(learner)["loss"])
        return {"loss": float(len(seen))}

    train(str(tmp_path / "run"), 14, test=tested, test_every=5)
    _, records = train(str(tmp_path / "run"), 30, test=tested, test_every=5)
    assert {record["step"]: record["test/loss"] for record in records if "test/loss" in record} == {
        4: 1.0, 9: 2.0, 14: 3.0, 19: 4.0, 24: 5.0, 29: 6.0,
    }  # fmt: skip
    kept = [{name: value for name, value in line.items() if name != "test/loss"} for line in lines(tmp_path / "run")]
    assert kept == lines(unbroken)
    assert equal(final(tmp_path / "run"), final(unbroken))


def test_schedules_and_callbacks_see_every_meta_step():
    seen = []
    train(None, 6, callbacks=[lambda step, learner, record: seen.append((step, record["step"]))])
    assert seen == [(step, step - 1) for step in range(1, 7)]


def test_tensorboard_events_hold_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, records = train(str(tmp_path / "run"), 3, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("meta_loss")]
    assert shown == [(place + 1, pytest.approx(record["meta_loss"], rel=1e-6)) for place, record in enumerate(records)]


def test_tensorboard_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(wg.WarpgradError, match=r"tensorboard is not installed: pip install 'warpgrad\[tensorboard\]'"):
        train(str(tmp_path / "run"), 1, tensorboard=True)


def test_settings_that_make_no_sense_are_refused():
    for options, words in [
        ({"meta_steps": 0}, "meta_steps=0"),
        ({"validate_every": 0}, "validate_every=0"),
        ({"test_every": 0}, "test_every=0"),
        ({"early_stopping": wg.EarlyStopping("loss", patience=1)}, "needs validate="),
        ({"fresh": True}, "need a run directory"),
    ]:
        given = {"meta_steps": 1, **options}
        with pytest.raises(wg.WarpgradError, match=words):
            wg.meta_train(
                wg.Learner(mlp()), wg.FunctionFamily(lambda seed: make_task(mlp, seed)), rule=wg.SGD(0.1),
                algorithm=wg.Online(steps=1, tasks=1), optimiser=partial(torch.optim.SGD, lr=0.1), **given,
            )  # fmt: skip
    with pytest.raises(wg.WarpgradError, match="patience=0"):
        wg.EarlyStopping("loss", patience=0)

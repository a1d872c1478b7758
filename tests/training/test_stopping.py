"""Early stopping belongs to the training, and a run says why it stopped."""

from __future__ import annotations

import json

import pytest
import torch

import warpgrad as wg
from tests.support.own_program import flat, own_training


def scripted(*scores):
    """A validation that returns these values, and what the parameters were at each."""
    left, seen = iter(scores), []

    def validate(learner):
        seen.append(flat(learner))
        return {"loss": next(left)}

    return validate, seen


def test_one_object_serves_two_trainings():
    stopping = wg.EarlyStopping("loss", patience=1)
    lengths = []
    for _ in range(2):
        validate, _ = scripted(3.0, 2.0, 4.0)
        _, records = own_training(meta_steps=9, validate=validate, early_stopping=stopping)
        lengths.append(len(records))
    assert lengths == [3, 3]


def test_a_stopped_run_says_why_and_stays_as_it_is(tmp_path):
    stopping = wg.EarlyStopping("loss", patience=2)
    validate, seen = scripted(3.0, 2.0, 4.0, 5.0)
    learner, records = own_training(tmp_path / "run", 9, validate=validate, early_stopping=stopping)
    assert records.stopped == "early stopping: loss has not improved on 2 in 2 validations"
    assert torch.equal(flat(learner), seen[1])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped"] == records.stopped
    assert summary["metrics"] == {"validation/loss": 2.0}  # of the parameters that it ended with
    again, same = own_training(tmp_path / "run", 9, validate=no_validation, early_stopping=stopping)
    assert (same, same.stopped) == (records, records.stopped)
    assert torch.equal(flat(again), seen[1])


def no_validation(learner):
    raise AssertionError("a stopped run validates no more")


def test_more_meta_steps_carry_a_stopped_run_on(tmp_path):
    stopping = wg.EarlyStopping("loss", patience=1)
    validate, seen = scripted(3.0, 4.0)
    own_training(tmp_path / "run", 5, validate=validate, early_stopping=stopping)
    later, after = scripted(2.5, 1.0, 7.0)
    learner, records = own_training(tmp_path / "run", 6, validate=later, early_stopping=stopping)
    assert [record["validation/loss"] for record in records] == [3.0, 4.0, 2.5, 1.0, 7.0]
    assert "not improved on 1 in 1 " in records.stopped
    assert torch.equal(flat(learner), after[1])
    assert len(seen) == 2


def test_a_best_of_before_still_counts_when_nothing_better_comes(tmp_path):
    stopping = wg.EarlyStopping("loss", patience=1)
    validate, seen = scripted(3.0, 4.0)
    own_training(tmp_path / "run", 5, validate=validate, early_stopping=stopping)
    later, _ = scripted(3.5)
    learner, records = own_training(tmp_path / "run", 8, validate=later, early_stopping=stopping)
    assert len(records) == 3
    assert torch.equal(flat(learner), seen[0])


@pytest.mark.parametrize("stopping", [None, wg.EarlyStopping("loss", patience=9, mode="max")])
def test_a_continuation_under_another_measure_restores_no_stale_best(tmp_path, stopping):
    validate, seen = scripted(3.0, 4.0)
    own_training(tmp_path / "run", 5, validate=validate, early_stopping=wg.EarlyStopping("loss", patience=1))
    later, after = scripted(5.0, 6.0, 7.0)
    learner, records = own_training(tmp_path / "run", 5, validate=later, early_stopping=stopping)
    assert len(records) == 5
    assert records.stopped is None
    assert torch.equal(flat(learner), after[-1])
    assert not torch.equal(flat(learner), seen[0])


def test_a_run_that_takes_all_its_steps_has_not_stopped():
    _, records = own_training(meta_steps=2)
    assert records.stopped is None

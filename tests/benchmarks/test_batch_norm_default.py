"""The default batch-norm policy is the one that the record shows to work."""

from __future__ import annotations

import json
import re

import pytest
from torch import nn

import warpgrad as wg
from benchmarks.batch_norm_default import POLICIES, PROBLEMS, RESULT, SEEDS, chosen


@pytest.fixture(scope="module")
def record():
    return json.loads(RESULT.read_text(encoding="utf-8"))


def test_the_default_is_the_policy_that_the_record_chooses(record):
    default = wg.Learner(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), warp="0").batch_norm
    assert default == chosen(record["rows"]) == record["chosen"]


def test_the_record_is_of_every_problem_and_policy_and_says_where_it_is_from(record):
    assert {(row["problem"], row["policy"]) for row in record["rows"]} == {(p, q) for p in PROBLEMS for q in POLICIES}
    assert record["settings"]["seeds"] == SEEDS >= 4
    assert all(row["by_seed"] is None or len(row["by_seed"]) == SEEDS for row in record["rows"])
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert record["hardware"]["cpu"]
    assert record["processor_seconds"] > 0
    assert record["command"] == "python -m benchmarks.batch_norm_default"


def test_a_policy_that_refuses_test_batches_is_never_chosen():
    rows = [
        {"problem": "p", "setting": setting, "policy": policy, "loss": loss}
        for setting, losses in {"batch": (3.0, 2.0, 1.0), "single": (3.0, 2.0, None)}.items()
        for policy, loss in zip(POLICIES, losses, strict=True)
    ]
    assert chosen(rows) == "corrected"

"""What a trial shows of itself on the way, which pruning goes by."""

from __future__ import annotations

import json
import os

import pytest

from warpgrad.errors import WarpgradError

pytest.importorskip("optuna", reason="needs Optuna: pip install 'warpgrad[sweep]'")

from warpgrad.sweep.trials import TrialReports


def test_reports_are_trailing_means_of_tenths(tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows = [json.dumps({"step": step, "meta_loss": float(step), "accuracy": 0.5}) for step in range(30)]
    watch = TrialReports(file, 30, "accuracy", "minimise", by=None, reported=set())
    assert list(watch.reports()) == []
    file.write_text("\n".join(rows[:7]))  # the seventh line is not whole yet
    assert list(watch.reports()) == [(6, 4.0)]
    assert list(watch.reports()) == []
    file.write_text("\n".join(rows) + "\n")
    assert list(watch.reports()) == [(step, step - 2.0) for step in range(9, 30, 3)]
    turned = TrialReports(file, 30, "accuracy", "maximise", by="meta_loss", reported={6, 9, 12, 15, 18, 21, 24})
    assert list(turned.reports()) == [(27, -25.0)]
    with pytest.raises(WarpgradError, match=r"has no 'test_loss' to prune by \(it has step, meta_loss, accuracy\)"):
        list(TrialReports(file, 30, "accuracy", "minimise", by="test_loss", reported=set()).reports())


def test_validations_may_be_further_apart_than_reports(tmp_path):
    """They are what trials are judged by where there are any: windows without one make no report."""
    file = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "task_loss_last": 1.0} for step in range(40)]
    for step in (9, 19, 29, 39):
        rows[step]["validation/accuracy"] = step / 100
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reports = list(TrialReports(file, 40, "accuracy", "maximise", by=None, reported=set()).reports())
    # Reports every 4 steps from the 8th on; before the first validation there is only the loss, where less is better.
    assert reports == [(8, -1.0), (12, 0.09), (20, 0.19), (32, 0.29)]
    assert (
        list(TrialReports(file, 40, "accuracy", "maximise", by="validation/accuracy", reported=set()).reports())
        == reports[1:]
    )


def test_metrics_that_are_a_pipe_or_damaged_are_refused_and_not_waited_for(tmp_path):
    file = tmp_path / "metrics.jsonl"
    os.mkfifo(file)
    with pytest.raises(OSError, match="it is not a regular file"):
        list(TrialReports(file, 30, "accuracy", "minimise", by=None, reported=set()).reports())
    file.unlink()
    for damaged in ("[1]\n", "{\n", '{"meta_loss": ' + "9" * 5000 + "}\n"):
        file.write_text(damaged * 10)
        with pytest.raises(WarpgradError, match="is damaged"):
            list(TrialReports(file, 30, "accuracy", "minimise", by=None, reported=set()).reports())

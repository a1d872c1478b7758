"""The loggers against the packages themselves, offline."""

from __future__ import annotations

import json
import struct

import pytest

from tests.support.own_program import own_training
from warpgrad.training import MLflowLogger, WandbLogger

pytestmark = pytest.mark.filterwarnings("ignore")


def test_wandb_keeps_settings_and_every_number(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="make integrations")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    _, records = own_training(tmp_path / "run", 3, callbacks=[WandbLogger("lines", directory=tmp_path)])
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    steps, config = [], {}
    for data in log_entries(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            steps.append(
                {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            )
        for update in record.run.config.update if record.HasField("run") else ():
            config["/".join(update.nested_key) or update.key] = json.loads(update.value_json)
    assert [step["_step"] for step in steps] == [1, 2, 3]
    for name in ("meta_loss", "lr/phi", "gradient_norm/theta0"):
        assert [step[name] for step in steps] == pytest.approx([record[name] for record in records])
    assert (config["rule"], config["rule.lr"]) == ("SGD", 0.1)


def log_entries(data: bytes):
    """The entries of wandb's file: a log of LevelDB's form after a header of 7 bytes, in blocks of 32 KiB."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # an entry, or the last part of one
            yield whole
            whole = b""


def test_mlflow_keeps_settings_and_every_number(tmp_path):
    pytest.importorskip("mlflow", reason="make integrations")
    from mlflow.tracking import MlflowClient

    logger = MLflowLogger("lines", directory=tmp_path / "store")
    for seed in (0, 1):
        _, records = own_training(
            tmp_path / f"run{seed}", 3, seed=seed, callbacks=[logger], validate=lambda learner: {"error (%)": 2.5}
        )
    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    found = client.search_runs([client.get_experiment_by_name("lines").experiment_id])
    (run,) = [run for run in found if run.info.run_name == "run1"]
    assert len(found) == 2
    assert (run.data.params["rule"], run.data.params["seed"], run.info.status) == ("SGD", "1", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "meta_loss")
    assert [(point.step, point.value) for point in history] == [
        (place, record["meta_loss"]) for place, record in enumerate(records, start=1)
    ]
    assert run.data.metrics["validation/error ___"] == 2.5

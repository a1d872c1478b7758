"""What a meta-step of each few-shot method costs: the measurement that the tables at equal time rest on."""

from __future__ import annotations

import torch

from benchmarks import few_shot_cost
from tests.support.few_shot_store import few_shot_store
from warpgrad.data.tasks.episodes import FewShotImages
from warpgrad.experiments.base import Execution
from warpgrad.experiments.few_shot.config import COST, TABLES
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.methods import Recipe
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import newest_checkpoint

EXPERIMENT = FewShot()


def test_what_is_timed_is_the_meta_step_of_a_run(tmp_path, monkeypatch):
    """Two meta-steps of the benchmark end with the bytes of a run of two."""
    store = few_shot_store(tmp_path / "store")
    config = EXPERIMENT.config(
        "small", method="meta-sgd", data=str(store.path), filters=3, ways=3, train_shots=2, query=2, meta_steps=2
    )
    EXPERIMENT.train(config, Execution(tmp_path / "run", progress=False))
    made: list[Recipe] = []
    make = few_shot_cost.recipe
    monkeypatch.setattr(few_shot_cost, "recipe", lambda *given: made.append(make(*given)) or made[-1])
    take = few_shot_cost.meta_steps(config, FewShotImages(store))
    for _ in range(2):
        take()
    stored = read_checkpoint(newest_checkpoint(tmp_path / "run"))["weights"]
    method = made[0].method
    assert all(torch.equal(value, stored["module"][name]) for name, value in method.learner.theta0.items())
    assert all(torch.equal(value, stored["rule"][name]) for name, value in method.rule.meta.items())


def test_every_method_of_the_tables_has_a_cost():
    for table in TABLES:
        shots = {"few-shot-cifar-1shot": 1, "few-shot-cifar-5shot": 5, "few-shot-cifar-long": 1}.get(table.name)
        if shots is not None:
            assert {row.settings["method"] for row in table.rows} <= set(COST[shots])
    assert {costs["maml"] for costs in COST.values()} == {1.0}

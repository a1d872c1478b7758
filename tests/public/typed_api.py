"""What mypy must know of the typed API. `make types` checks this file with the rest; it is never run."""

from functools import partial
from pathlib import Path
from typing import Any, assert_type

import torch
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.adaptation.trajectory import Segment, Trajectory
from warpgrad.training import MetaRecords


class Net(nn.Module):
    """A user's own class, with an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x)
        return output


def a_learner_knows_the_users_class(task: wg.Task) -> None:
    learner = wg.Learner(Net())
    assert_type(learner, wg.Learner[Net])
    assert_type(learner.module, Net)
    assert_type(learner.adapted({}, {}), Net)
    assert_type(wg.adapt(learner, task, rule=wg.SGD(0.1), steps=1), Net)
    assert_type(wg.adapt(learner, task, rule=wg.SGD(0.1), steps=1, curve=True), tuple[Net, wg.LearningCurve])
    assert_type(wg.adapt(learner, task, rule=wg.SGD(0.1), steps=1).head, nn.Linear)


def a_learner_of_any_class_does(learner: wg.Learner, task: wg.Task) -> None:
    assert_type(learner.module, nn.Module)
    assert_type(wg.adapt(learner, task, rule=wg.SGD(0.1), steps=1), nn.Module)


def a_learner_of_one_class_is_a_learner(task: wg.Task) -> None:
    a_learner_of_any_class_does(wg.Learner(Net()), task)
    assert_type(wg.Method(wg.Learner(Net()), wg.SGD(0.1)), wg.Method)


def meta_training_takes_a_method_or_its_parts(method: wg.Method, family: wg.TaskFamily, run: Path) -> None:
    adam = partial(torch.optim.Adam, lr=1e-3)
    online = wg.Online(steps=3, tasks=2)
    assert_type(wg.meta_train(method, family, algorithm=online, optimiser=adam, meta_steps=1, run=run), MetaRecords)
    assert_type(
        wg.meta_train(
            method.learner,
            family,
            algorithm=online,
            rule=wg.SGD(0.1),
            optimiser={"phi": adam, "theta0": adam},
            meta_steps=1,
        ),
        MetaRecords,
    )


def layers_keep_the_class(net: Net) -> None:
    assert_type(wg.Warp(net), Net)
    assert_type(wg.interleave(net, wg.linear_warp, after="head"), Net)
    assert_type(wg.compress(net, wg.sized(nn.BatchNorm1d), after="head"), Net)


def trajectories_hand_out_segments(adaptation: wg.Adaptation) -> None:
    for segment in Trajectory(adaptation, 3):
        assert_type(segment, Segment)
        assert_type(segment.after, wg.Point)
        assert_type(segment.loss, Tensor)


def scores_are_numbers(learner: wg.Learner, task: wg.Task) -> None:
    assert_type(wg.score(learner, [task], rule=wg.SGD(0.1), steps=1), dict[str, float])
    assert_type(wg.evaluate(learner, task, learner.theta0, learner.buffers()), dict[str, float])


def a_misuse_is_an_error(learner: wg.Learner, task: wg.Task, options: dict[str, Any]) -> None:
    wg.adapt(learner, task, rule="sgd", steps=1)  # type: ignore[call-overload]
    wg.Learner("net")  # type: ignore[type-var]
    wg.Online(steps=1, tasks=1, backend="quick")  # type: ignore[arg-type]
    wg.Method(learner, wg.SGD(0.1), objective=wg.Leap())  # type: ignore[arg-type]
    wg.EarlyStopping(metric="loss", patience=1, mode="least", **options)  # type: ignore[arg-type]

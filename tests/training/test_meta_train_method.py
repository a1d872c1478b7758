"""`meta_train` takes a method that was built once, or a learner with the other parts."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import warpgrad as wg

X = torch.linspace(-1, 1, 8)[:, None]
FAMILY = wg.TaskList([wg.SupervisedTask(X, slope * X, F.mse_loss) for slope in (1.0, 2.0)])
REST = {"algorithm": wg.Online(steps=2, tasks=2), "optimiser": partial(torch.optim.Adam, lr=0.1), "meta_steps": 2}


def learner() -> wg.Learner:
    torch.manual_seed(0)
    return wg.Learner(nn.Sequential(nn.Linear(1, 3), wg.Warp(nn.Linear(3, 3)), nn.Linear(3, 1)))


def test_a_method_and_its_parts_end_with_the_same_bytes():
    whole, parts = learner(), learner()
    wg.meta_train(wg.Method(whole, wg.SGD(0.1), wg.Exact(), wg.Leap(), weight=0.5), FAMILY, **REST)
    given = {"rule": wg.SGD(0.1), "objective": wg.Exact(), "initialiser": wg.Leap(), "weight": 0.5}
    wg.meta_train(parts, FAMILY, **given, **REST)
    for name, value in whole.module.named_parameters():
        assert torch.equal(value, parts.module.get_parameter(name)), name
        assert not torch.equal(value, learner().module.get_parameter(name)), name


def test_the_method_that_is_given_is_the_one_that_learns():
    method = wg.Method(learner(), wg.SGD(wg.Learned(0.1)), wg.Exact())
    before = method.rule.meta["lr"].item()
    wg.meta_train(method, FAMILY, **REST)
    assert method.rule.meta["lr"].item() != before


@pytest.mark.parametrize("name", ["rule", "objective", "initialiser", "weight"])
def test_a_part_beside_a_whole_method_is_refused_by_name(name):
    part = {"rule": wg.SGD(0.1), "objective": wg.Exact(), "initialiser": wg.Leap(), "weight": 1.0}[name]
    with pytest.raises(wg.WarpgradError, match=f"set {name}= in Method"):
        wg.meta_train(wg.Method(learner(), wg.SGD(0.1)), FAMILY, **{name: part}, **REST)


def test_a_learner_without_a_rule_is_refused():
    with pytest.raises(wg.WarpgradError, match="needs rule="):
        wg.meta_train(learner(), FAMILY, objective=wg.Exact(), **REST)


def test_recipes_are_choices_of_parts():
    own, rule = learner(), wg.SGD(0.1)
    for made, objective, initialiser in (
        (wg.warp_maml(own, rule), wg.Exact, wg.MAML),
        (wg.warp_leap(own, rule), wg.Exact, wg.Leap),
        (wg.warp_leap(own, rule, wg.Approximate()), wg.Approximate, wg.Leap),
        (wg.warp_rnn(own, rule), wg.InPlace, wg.MultiTask),
    ):
        assert (made.learner, made.rule) == (own, rule)
        assert (type(made.objective), type(made.initialiser)) == (objective, initialiser)

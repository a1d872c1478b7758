"""`meta_gradient` is the arithmetic of `meta_train`, for a loop of the user's own."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import warpgrad as wg
from tests.support.own_program import FAMILY, flat, line, own_learner
from warpgrad.keys import fold

CASES = {
    "online": (wg.Online(steps=3, tasks=2), {"objective": wg.Exact(), "initialiser": wg.Leap()}),
    "learned-lr": (wg.Online(steps=3, tasks=2), {"objective": wg.Exact(), "rule": lambda: wg.SGD(wg.Learned(0.1))}),
    "prior": (
        wg.Online(steps=2, tasks=2),
        {"objective": wg.Exact(), "initialiser": lambda: wg.GaussianPrior(wg.Reptile(), std=0.1)},
    ),
    "offline": (
        wg.Offline(steps=3, tasks=2, samples=None),
        {"objective": wg.Approximate(), "initialiser": wg.Reptile()},
    ),
    "unrolled": (wg.Unrolled(steps=2, tasks=2), {}),
}


def method_of(parts) -> wg.Method:
    made = {
        name: part() if not isinstance(part, (wg.Objective, wg.Initialiser)) else part for name, part in parts.items()
    }
    return wg.Method(own_learner(), made.pop("rule", wg.SGD(0.1)), **made)


@pytest.mark.parametrize("name", CASES)
def test_a_loop_of_ones_own_takes_the_same_steps_to_the_last_bit(name):
    algorithm, parts = CASES[name]
    theirs, mine = method_of(parts), method_of(parts)
    adam = partial(torch.optim.Adam, lr=1e-2)
    records = wg.meta_train(theirs, FAMILY, algorithm=algorithm, optimiser=adam, meta_steps=3, seed=7)
    groups = {group: list(mine.parameters(group).values()) for group in ("phi", "rule", "theta0", "prior")}
    optimisers = [adam(values) for values in groups.values() if values]
    for step in range(3):
        found = wg.meta_gradient(mine, FAMILY, fold(7, step), algorithm=algorithm)
        assert all(records[step][name] == value for name, value in found.losses.items())
        found.assign()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    assert torch.equal(flat(mine.learner), flat(theirs.learner))
    for group in ("rule", "prior"):
        own = mine.parameters(group)
        assert all(torch.equal(value, own[name]) for name, value in theirs.parameters(group).items())


def test_nothing_is_changed_and_gradients_add_up():
    method = wg.Method(own_learner(), wg.SGD(0.1), wg.Exact(), wg.Leap())
    before = flat(method.learner)
    found = wg.meta_gradient(method, [line(1), line(2)], 0, algorithm=wg.Online(steps=2, tasks=9))
    assert torch.equal(flat(method.learner), before)
    assert all(value.grad is None for value in method.learner.module.parameters())
    found.assign()
    found.assign()
    for group, gradient in found.groups.items():
        for name, value in gradient.items():
            assert torch.equal(method.parameters(group)[name].grad, 2 * value)


def test_what_has_no_one_gradient_is_refused():
    method = wg.Method(own_learner(), wg.SGD(0.1), wg.Exact(), wg.Leap())
    with pytest.raises(wg.WarpgradError, match=r"Offline updates phi several times .* Offline\(samples=None"):
        wg.meta_gradient(method, FAMILY, 0, algorithm=wg.Offline(steps=2, tasks=2, samples=1))
    with pytest.raises(wg.WarpgradError, match="a list of at least one task, not a list"):
        wg.meta_gradient(method, [], 0, algorithm=wg.Online(steps=2, tasks=2))

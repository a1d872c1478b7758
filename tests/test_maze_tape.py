"""Backward passes that are written out, against autograd."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch
from torch import Tensor

from test_maze_agents import SMALL, randomised, small_learner
from warpgrad.errors import WarpgradError
from warpgrad.tasks.reinforcement import ActorCritic, episode_seeds

TAPED = dataclasses.replace(SMALL, taped=True)


@pytest.mark.parametrize(
    ("name", "gate_bias"),
    [("warp-rnn", 1.0), ("warp-rnn", None), ("hyperrnn", None)],
)
def test_gradients_of_a_tape_are_those_of_autograd(name, gate_bias):
    """In float64, for every weight; also where the graph is used twice."""
    pair = [dataclasses.replace(options, gate_bias=gate_bias) for options in (SMALL, TAPED)]
    modules = [small_learner(name, options=options).module.double() for options in pair]
    randomised(modules[0])
    modules[1].load_state_dict(modules[0].state_dict())
    seeds = episode_seeds(4, 1)
    episodes = [module(seeds) for module in modules]
    assert torch.equal(episodes[0].actions, episodes[1].actions)
    losses = [ActorCritic().loss(found) for found in episodes]
    expected, found = (
        torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        for loss, module in zip(losses, modules, strict=True)
    )
    again = torch.autograd.grad(losses[1], list(modules[1].parameters()))
    for (path, _), known, value, repeated in zip(modules[0].named_parameters(), expected, found, again, strict=True):
        torch.testing.assert_close(value, known, rtol=1e-9, atol=1e-13, msg=path)
        assert torch.equal(value, repeated), path
        assert known.abs().sum() > 0, path
    with torch.no_grad():
        torch.testing.assert_close(modules[1](seeds).log_policy, episodes[0].log_policy.detach())


def test_a_tape_is_not_differentiated_twice_and_leaves_nothing_behind():
    module = small_learner("warp-rnn", options=TAPED).module
    loss = ActorCritic().loss(module(episode_seeds(3, 2)))
    with pytest.raises(WarpgradError, match="cannot be differentiated twice"):
        torch.autograd.grad(loss, [module.agent.cell.weight_hh], create_graph=True)
    del loss
    gc.collect()

    def alive() -> int:
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    before = alive()
    for _ in range(3):
        ActorCritic().loss(module(episode_seeds(3, 2))).backward()
        module.zero_grad(set_to_none=True)
    gc.collect()
    assert alive() == before

"""Backward passes that are written out, against autograd."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch
from torch import Tensor

from tests.maze.test_agents import SMALL, randomised, small_learner
from warpgrad.errors import WarpgradError
from warpgrad.maze import HebbianAgent, RetroactiveModulationAgent, SimpleModulationAgent, WarpAgent
from warpgrad.tasks.reinforcement import ActorCritic, episode_seeds

TAPED = dataclasses.replace(SMALL, taped=True)


@pytest.mark.parametrize(
    ("name", "gate_bias"),
    [
        ("warp-rnn", 1.0),
        ("warp-rnn", None),
        ("hyperrnn", None),
        ("hebbian", None),
        ("simple-modulation", None),
        ("retroactive-modulation", None),
    ],
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


@pytest.mark.parametrize("kind", [WarpAgent, HebbianAgent])
def test_a_tape_is_used_whole_and_with_the_weights_it_was_made_of(kind):
    agent = kind(4, 3, 2)
    tape, xs = agent.tape(2, 5), torch.randn(2, 5, 4)
    tape.step(xs[0])
    with pytest.raises(WarpgradError, match="1 of this tape's 2 steps are taken"):
        tape.joined()
    tape.step(xs[1])
    with pytest.raises(WarpgradError, match="this tape is for 2 steps"):
        tape.step(xs[1])
    weight = tape.weights[1]
    gradients = torch.autograd.grad(tape.joined().sum(), [weight])
    loss = tape.joined().sum()
    torch.autograd.grad(loss, [weight])
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, [weight])
    changed = tape.joined()
    with torch.no_grad():
        changed.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(changed.sum(), [weight])
    changed = agent.tape(2, 5)
    for x in xs:
        changed.step(x)
    loss = changed.joined().sum()
    with torch.no_grad():
        changed.weights[2].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, [changed.weights[1]])
    assert gradients[0].abs().sum() > 0


@pytest.mark.parametrize("name", ["warp-rnn", "retroactive-modulation"])
def test_a_tape_is_not_differentiated_twice_and_leaves_nothing_behind(name):
    module = small_learner(name, options=TAPED).module
    loss = ActorCritic().loss(module(episode_seeds(3, 2)))
    with pytest.raises(WarpgradError, match="cannot be differentiated twice"):
        torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
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


@pytest.mark.parametrize("kind", [HebbianAgent, SimpleModulationAgent, RetroactiveModulationAgent])
def test_the_tape_of_a_plastic_agent_with_clipped_traces(kind):
    agent = kind(4, 3, 2).double()
    randomised(agent, 1.5)
    with torch.no_grad():
        for name, start in (("eta", 0.6), ("fan_out", 2.0)):
            if hasattr(agent, name):
                getattr(agent, name).fill_(start)
    xs, onto = 2 * torch.randn(7, 2, 4, dtype=torch.float64), torch.randn(7, 2, 3, dtype=torch.float64)
    state, step, tape, hidden = agent.start(xs[0]), agent.stepper(), agent.tape(7, 2), []
    clipped = False
    for x in xs:
        h, state = step(x, state)
        hidden.append(h)
        clipped = clipped or bool((state[1].abs() == 1).any())
        torch.testing.assert_close(tape.step(x), h.detach())
    assert clipped == (kind is not HebbianAgent)
    named = {name: value for name, value in agent.named_parameters() if not name.startswith(("policy", "value"))}
    expected = torch.autograd.grad((torch.stack(hidden) * onto).sum(), list(named.values()))
    found = torch.autograd.grad((tape.joined() * onto).sum(), list(named.values()))
    for name, value, known in zip(named, found, expected, strict=True):
        assert known.abs().sum() > 0, name
        torch.testing.assert_close(value, known, msg=name)


@pytest.mark.parametrize(("length", "batch"), [(1, 1), (1, 3), (5, 1)])
@pytest.mark.parametrize("kind", [WarpAgent, HebbianAgent, SimpleModulationAgent, RetroactiveModulationAgent])
def test_small_tapes_and_two_at_a_time(kind, length, batch):
    """Steps of two roll-outs that take turns, and one backward pass through both."""
    agent = kind(4, 3, 2).double()
    randomised(agent)
    both = [torch.randn(length, batch + extra, 4, dtype=torch.float64) for extra in range(2)]
    tapes = [agent.tape(length, xs.shape[1]) for xs in both]
    states, step, hidden = [agent.start(xs[0]) for xs in both], agent.stepper(), [[], []]
    for t in range(length):
        for place, (xs, tape) in enumerate(zip(both, tapes, strict=True)):
            tape.step(xs[t])
            h, states[place] = step(xs[t], states[place])
            hidden[place].append(h)
    named = [value for name, value in agent.named_parameters() if not name.startswith(("policy", "value"))]
    expected = torch.autograd.grad(sum(torch.stack(each).square().sum() for each in hidden), named, allow_unused=True)
    found = torch.autograd.grad(sum(tape.joined().square().sum() for tape in tapes), named)
    for value, known in zip(found, expected, strict=True):
        torch.testing.assert_close(value, torch.zeros_like(value) if known is None else known)

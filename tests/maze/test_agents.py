"""Agents, the actor-critic objective and the roll-out: against steps, losses and gradients worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import warpgrad as wg
from warpgrad.algorithms.method import Method
from warpgrad.maze import (
    AGENTS,
    WARPED,
    AgentOptions,
    HebbianAgent,
    Maze,
    RetroactiveModulationAgent,
    RNNAgent,
    SimpleModulationAgent,
    TNetsAgent,
    WarpAgent,
    build_learner,
    task_parameters,
    warp_parameters,
)
from warpgrad.maze.environment import MazeVectorEnv
from warpgrad.maze.roll_out import MazeRollOut, choose
from warpgrad.tasks.reinforcement import ActorCritic, EpisodeFamily, Episodes, EpisodeTask, episode_seeds

SMALL = AgentOptions(hidden=6, context=5, gate_bias=1.0)
MAZE = Maze(size=5, length=12)


def small_learner(name: str, maze: Maze = MAZE, options: AgentOptions = SMALL) -> wg.Learner:
    return build_learner(name, maze, options)


def randomised(agent: torch.nn.Module, scale: float = 0.7) -> None:
    """Weights large enough for every term of a step to matter."""
    for parameter in agent.parameters():
        torch.nn.init.uniform_(parameter, -scale, scale)


# --- the objective


def test_the_objective_of_a_hand_computed_episode():
    """Two episodes of three steps and two actions, every term with pencil and paper."""
    first, second = [[0.5, 0.5], [0.2, 0.8], [0.7, 0.3]], [[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]]
    p = torch.tensor([first, second], dtype=torch.float64).transpose(0, 1)
    values = torch.tensor([[1.0, 0.5], [2.0, -1.0], [0.0, 3.0]], dtype=torch.float64)
    actions = torch.tensor([[0, 1], [1, 0], [0, 0]])
    rewards = torch.tensor([[0.0, 10.0], [0.0, 0.0], [10.0, 0.0]], dtype=torch.float64)
    # r_t of the action at t comes first: R of episode 0 is 0.81·10, 0.9·10, 10; of episode 1 it is 10, 0, 0.
    expected_returns = [[8.1, 10.0], [9.0, 0.0], [10.0, 0.0]]
    advantages = [[7.1, 9.5], [7.0, 1.0], [10.0, -3.0]]
    chosen = [[0.5, 0.1], [0.8, 0.6], [0.7, 0.5]]
    squares = [[0.5, 0.82], [0.68, 0.52], [0.58, 0.5]]
    loss = 0.0
    for t in range(3):
        for b in range(2):
            a = advantages[t][b]
            loss += (-math.log(chosen[t][b]) * a + 0.1 * a**2 + 0.03 * squares[t][b]) / (3 * 2)
    objective = ActorCritic()
    episodes = Episodes(p.log(), values, actions, rewards)
    torch.testing.assert_close(objective.discounted(rewards), torch.tensor(expected_returns, dtype=torch.float64))
    assert float(objective.loss(episodes)) == pytest.approx(loss, abs=1e-12)
    assert episodes.returns.tolist() == [10.0, 10.0]


def test_the_advantage_is_a_constant_for_the_actor():
    """∂L/∂V is that of the critic's term alone: −2 c_v A / (T·B)."""
    values = torch.tensor([[0.3], [1.5]], dtype=torch.float64, requires_grad=True)
    logits = torch.tensor([[[0.1, 0.4]], [[1.0, -1.0]]], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    episodes = Episodes(F.log_softmax(logits, 2), values, torch.tensor([[0], [1]]), rewards)
    (gradient,) = torch.autograd.grad(ActorCritic().loss(episodes), values)
    advantage = torch.tensor([[1.0 + 0.9 * 2.0 - 0.3], [2.0 - 1.5]], dtype=torch.float64)
    torch.testing.assert_close(gradient, -2 * 0.1 * advantage / 2)


# --- one step of every agent


def test_the_rnn_and_the_t_nets_rnn_by_their_formulas():
    x, h = torch.randn(3, 4), torch.randn(3, 5)
    rnn, t_nets = RNNAgent(4, 5, 2), TNetsAgent(4, 5, 2, transform="drawn")
    expected = torch.tanh(h @ rnn.weight_hh.T + x @ rnn.weight_ih.T + rnn.bias)
    torch.testing.assert_close(rnn.stepper()(x, (h,))[0], expected)
    t_h, t_x, t_b = (t_nets.transforms[name] for name in ("hidden", "input", "bias"))
    v, w, b = t_nets.weight_hh, t_nets.weight_ih, t_nets.bias
    expected = torch.tanh(torch.stack([t_h @ (v @ h[i]) + t_x @ (w @ x[i]) + t_b @ b for i in range(3)]))
    torch.testing.assert_close(t_nets.stepper()(x, (h,))[0], expected)
    plain = TNetsAgent(4, 5, 2)
    plain.load_state_dict(rnn.state_dict(), strict=False)
    # T's start at the identity.
    torch.testing.assert_close(plain.stepper()(x, (h,))[0], rnn.stepper()(x, (h,))[0])


def test_the_warp_agent_is_the_warp_hyper_cell_with_explicit_state():
    agent = WarpAgent(4, 5, 2, context=3)
    xs = torch.randn(4, 2, 4)
    expected, _ = wg.layers.WarpHyperNetwork(agent.cell)(xs)
    state, step = agent.start(xs[0]), agent.stepper()
    for x, known in zip(xs, expected, strict=True):
        h, state = step(x, state)
        torch.testing.assert_close(h, known)
    assert [tuple(part.shape) for part in state] == [(2, 5), (2, 3), (2, 3)]


def by_hand(agent, xs: Tensor, rule: str) -> tuple[list[Tensor], Tensor]:
    """A plastic network unit by unit, in loops, for one episode."""
    n = agent.hidden
    h, trace, eligible = torch.zeros(n), torch.zeros(n, n), torch.zeros(n, n)
    seen = []
    for x in xs:
        y = torch.zeros(n)
        for j in range(n):
            total = agent.bias[j] + (agent.weight_ih[j] * x).sum()
            for i in range(n):
                total = total + (agent.weight_hh[i, j] + agent.alpha[i, j] * trace[i, j]) * h[i]
            y[j] = torch.tanh(total)
        new_trace, new_eligible = trace.clone(), eligible.clone()
        if rule != "hebbian":
            m = torch.tanh((agent.modulator.weight[0] * y).sum() + agent.modulator.bias[0])
        for i in range(n):
            for j in range(n):
                pair = h[i] * y[j]
                if rule == "hebbian":
                    new_trace[i, j] = (1 - agent.eta) * trace[i, j] + agent.eta * pair
                elif rule == "simple":
                    new_trace[i, j] = (trace[i, j] + m * agent.fan_out[j] * pair).clamp(-1, 1)
                else:
                    new_trace[i, j] = (trace[i, j] + m * agent.fan_out[j] * eligible[i, j]).clamp(-1, 1)
                    new_eligible[i, j] = (1 - agent.eta) * eligible[i, j] + agent.eta * pair
        h, trace, eligible = y, new_trace, new_eligible
        seen.append(h)
    return seen, trace


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(HebbianAgent, "hebbian"), (SimpleModulationAgent, "simple"), (RetroactiveModulationAgent, "retroactive")],
)
def test_plasticity_against_hand_computed_steps(kind, rule):
    """Hidden states, traces and the gradient for every parameter; weights are large enough for traces to be clipped."""
    agent = kind(4, 3, 2).double()
    with torch.no_grad():
        randomised(agent, 1.5)
        if rule != "simple":
            agent.eta.fill_(0.6)
        if rule != "hebbian":
            agent.fan_out.fill_(2.0)
    torch.set_default_dtype(torch.float64)
    try:
        xs = 2 * torch.randn(7, 2, 4)
        state, step, seen = agent.start(xs[0]), agent.stepper(), []
        for x in xs:
            h, state = step(x, state)
            seen.append(h)
        found = torch.stack(seen)
        pieces = [by_hand(agent, xs[:, b], rule) for b in range(2)]
        expected = torch.stack([torch.stack(piece[0]) for piece in pieces], dim=1)
        traces = torch.stack([piece[1] for piece in pieces])
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(state[1], traces)
    if rule != "hebbian":
        assert (traces.abs() == 1).any()
        assert (traces.abs() < 1).any()
    parameters = [value for name, value in agent.named_parameters() if name.split(".")[0] not in ("policy", "value")]
    weights = torch.randn_like(found)
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_sizes_are_the_papers():
    """θ of Warp-RNN and T-Nets-RNN is that of the plain RNN; the HyperRNN adapts all that the Warp-RNN has."""
    learners = {name: build_learner(name, Maze()) for name in AGENTS}
    rnn = 100 * 17 + 100 * 100 + 100 + (4 * 100 + 4) + (100 + 1)
    assert task_parameters(learners["rnn"]) == rnn == 12_305
    assert task_parameters(learners["warp-rnn"]) == task_parameters(learners["t-nets-rnn"]) == rnn
    lstm = 400 * (117 + 100) + 2 * 400
    gates = 100 * (100 + 100 + 17 + 100 + 100)
    assert warp_parameters(learners["warp-rnn"]) == lstm + gates
    assert warp_parameters(learners["t-nets-rnn"]) == 3 * 100 * 100
    assert task_parameters(learners["hyperrnn"]) == rnn + lstm + gates
    assert task_parameters(learners["hebbian"]) == rnn + 100 * 100 + 1
    assert task_parameters(learners["simple-modulation"]) == rnn + 100 * 100 + 101 + 100
    assert task_parameters(learners["retroactive-modulation"]) == rnn + 100 * 100 + 101 + 100 + 1
    for name, learner in learners.items():
        assert bool(learner.phi) == (name in WARPED)


# --- roll-outs


def test_choices_follow_their_weights():
    weights = np.array([[0.0, 1.0, 2.0, 1.0]] * 5)
    assert choose(weights, np.array([0.0, 0.24, 0.25, 0.74, 1 - 2**-53])).tolist() == [1, 1, 2, 2, 3]
    assert choose(np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([1 - 2**-53])).tolist() == [0]
    many = choose(np.tile([[0.1, 0.2, 0.3, 0.4]], (40_000, 1)), np.random.default_rng(0).random(40_000))
    assert np.bincount(many) / 40_000 == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)


@pytest.mark.parametrize("name", AGENTS)
def test_a_roll_out_is_the_agent_stepping_through_the_environment(name):
    """Replayed in gymnasium's batch, one step of the agent at a time: same rewards, same policy, same values."""
    learner = small_learner(name)
    seeds = torch.tensor([5, 6, 7, 8])
    episodes = learner.module(seeds)
    env = MazeVectorEnv(4, size=5, length=12)
    seen, _ = env.reset(seed=5)
    state, agent = None, learner.module.agent
    for t in range(12):
        log_policy, values, state = agent(torch.from_numpy(seen), state)
        torch.testing.assert_close(log_policy, episodes.log_policy[t])
        torch.testing.assert_close(values, episodes.values[t])
        seen, rewards, _, truncations, _ = env.step(episodes.actions[t].numpy())
        assert rewards.tolist() == episodes.rewards[t].tolist()
    assert truncations.all()


@pytest.mark.parametrize("name", AGENTS)
def test_roll_outs_repeat_by_seed_in_any_company(name):
    learner = small_learner(name)
    seeds = episode_seeds(6, 1)
    with torch.no_grad():
        whole, again = learner.module(seeds), learner.module(seeds)
        part = learner.module(seeds[2:4])
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    assert torch.equal(whole.actions[:, 2:4], part.actions)
    assert torch.equal(whole.rewards[:, 2:4], part.rewards)
    assert not torch.equal(whole.actions, learner.module(episode_seeds(6, 2)).actions)


def test_moves_follow_the_policy():
    """Over many episodes the moves at the first step, where all see the same, come as often as the policy says."""
    learner = build_learner("rnn", Maze(size=5, length=1), SMALL)
    with torch.no_grad():
        randomised(learner.module, 1.0)
        episodes = learner.module(episode_seeds(20_000, 0))
    found = torch.bincount(episodes.actions[0], minlength=4) / 20_000
    torch.testing.assert_close(found, episodes.log_policy[0, 0].exp(), atol=0.012, rtol=0)


def test_forgetting_takes_the_state_away_before_every_step():
    learner = small_learner("rnn")
    seeds = episode_seeds(3, 0)
    forgetful = learner.module(seeds, forget=True)
    env = MazeVectorEnv(3, size=5, length=12)
    seen, _ = env.reset(seed=seeds.tolist())
    for t in range(12):
        log_policy, _, _ = learner.module.agent(torch.from_numpy(seen))
        torch.testing.assert_close(log_policy, forgetful.log_policy[t])
        seen = env.step(forgetful.actions[t].numpy())[0]
    memoryless = small_learner("memoryless").module
    assert torch.equal(memoryless(seeds).log_policy, memoryless(seeds, forget=True).log_policy)


# --- Algorithm 3 through the core


def plain_gradient(learner: wg.Learner, seeds: Tensor) -> dict[str, Tensor]:
    """Backpropagation with nothing of the library but the module: stepwise through the agent, loss written out."""
    agent, maze = learner.module.agent, learner.module.maze
    env = MazeVectorEnv(len(seeds), size=maze.size, length=maze.length)
    seen, _ = env.reset(seed=seeds.tolist())
    with torch.no_grad():
        actions = learner.module(seeds).actions
    state, log_policies, values, rewards = None, [], [], []
    for t in range(maze.length):
        x = torch.from_numpy(seen).to(agent.policy.weight.dtype)
        log_policy, value, state = agent(x, state)
        log_policies.append(log_policy)
        values.append(value)
        seen, reward, *_ = env.step(actions[t].numpy())
        rewards.append(torch.from_numpy(reward).to(value.dtype))
    loss, following = torch.zeros((), dtype=value.dtype), torch.zeros_like(value)
    for t in reversed(range(maze.length)):
        following = rewards[t] + 0.9 * following
        advantage = following - values[t]
        log_p = log_policies[t]
        chosen = log_p[torch.arange(len(seeds)), actions[t]]
        per_episode = -chosen * advantage.detach() + 0.1 * advantage**2 + 0.03 * (log_p.exp() ** 2).sum(1)
        loss = loss + per_episode.mean() / maze.length
    names, parameters = zip(*learner.module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("name", WARPED)
def test_the_in_place_gradients_are_those_of_a_plain_backward_pass(name, taped):
    """And take one roll-out, which serves θ and φ."""
    # gymnasium's observations are float32, in which t / 16 is exact.
    learner = small_learner(name, Maze(size=5, length=16), dataclasses.replace(SMALL, taped=taped))
    learner.module.double()
    randomised(learner.module)
    learner = wg.Learner(learner.module)
    task = EpisodeFamily(5).sample(3)
    assert task.one_loss
    expected = plain_gradient(learner, task.adapt_batch(0))
    adaptation = wg.Adaptation(learner, wg.SGD(1e-3), task, key=0)
    with mock.patch.object(MazeRollOut, "walk", autospec=True, side_effect=MazeRollOut.walk) as walks:
        sample = wg.InPlace().step(adaptation, adaptation.start())
    assert walks.call_count == 1
    assert sample.phi.keys() | sample.transition.gradient.keys() == expected.keys()
    for found in (sample.phi, sample.transition.gradient):
        for path, value in found.items():
            torch.testing.assert_close(value, expected[path], rtol=1e-9, atol=1e-12)
            assert value.abs().sum() > 0, path


@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("name", [name for name in AGENTS if name not in WARPED])
def test_gradients_of_agents_without_a_warp(name, taped):
    learner = small_learner(name, options=dataclasses.replace(SMALL, taped=taped))
    randomised(learner.module)
    task = EpisodeFamily(4).sample(1)
    expected = plain_gradient(learner, task.adapt_batch(0))
    adaptation = wg.Adaptation(learner, wg.SGD(1e-3), task, key=0)
    gradient = adaptation.step(adaptation.start()).gradient
    assert gradient.keys() == expected.keys()
    for path, value in gradient.items():
        torch.testing.assert_close(value, expected[path], rtol=2e-4, atol=1e-6)


def test_algorithm_3_moves_theta_on_every_batch_and_phi_on_every_third():
    learner = small_learner("warp-rnn")
    method = Method(learner, wg.SGD(1e-3), wg.InPlace(), wg.MultiTask())
    algorithm = wg.Continual(tasks=1, batches=3)
    calls: list[tuple[str, dict[str, Tensor]]] = []
    family = EpisodeFamily(3)
    for number in range(6):
        algorithm.meta_step(method, family.meta_batch(number, 1), [number], lambda g, v: calls.append((g, v)))
    assert [group for group, _ in calls] == (["theta0"] * 3 + ["phi"]) * 2
    single = [plain_gradient(learner, family.meta_batch(number, 1)[0].adapt_batch(0)) for number in range(3)]
    for path, value in calls[3][1].items():  # the mean over η batches
        torch.testing.assert_close(value, sum(one[path] for one in single) / 3, rtol=1e-3, atol=1e-6)


def test_tasks_are_stateless_and_their_batches_differ():
    family = EpisodeFamily(30)
    task = family.sample(8)
    assert isinstance(task, EpisodeTask)
    assert torch.equal(task.adapt_batch(0), family.sample(8).adapt_batch(0))
    batches = [task.adapt_batch(0), task.adapt_batch(1), task.meta_batch(0), *task.test_batches()]
    batches.append(family.sample(9).adapt_batch(0))
    assert len(torch.cat(batches).unique()) == 150
    learner = small_learner("rnn")
    scores = wg.evaluate(learner, family.sample(8), learner.theta0, {})
    assert scores.keys() == {"loss", "return"}


def test_what_cannot_be_is_named():
    with pytest.raises(wg.WarpgradError, match=r"there is no agent 'lstm'; choose one of warp-rnn, rnn"):
        build_learner("lstm", MAZE)
    with pytest.raises(wg.WarpgradError, match=r"episodes=0"):
        EpisodeFamily(0)
    assert isinstance(small_learner("rnn").module, MazeRollOut)

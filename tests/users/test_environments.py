"""Own reinforcement learning: a gymnasium vector environment, a policy module, and the A2C loss of the maze."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold
from warpgrad.tasks.base import check_repeats
from warpgrad.tasks.reinforcement import ActorCritic, Episodes

gymnasium = pytest.importorskip("gymnasium", reason="pip install 'warpgrad[paper]'")
EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example():
    spec = importlib.util.spec_from_file_location("example_cartpole", EXAMPLES / "cartpole.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HELD_OUT, module.EPISODES, module.LENGTH = 2, 3, 12
    return module


@pytest.fixture
def example():
    return load_example()


def test_episodes_repeat_and_end_where_the_environment_ends_them(example):
    task = example.cart_task(3)
    check_repeats(task)
    torch.manual_seed(0)
    learner = wg.Learner(example.Policy(), warp="middle")
    forward = learner.bind(learner.start(0), learner.buffers())
    first, again = (task.episodes(forward, task.adapt_batch(0)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    other = task.episodes(forward, task.adapt_batch(1))
    assert other.actions.shape != first.actions.shape or not torch.equal(other.actions, first.actions)
    # CartPole pays 1 for every step, the last one included: a return is the number of steps that were alive.
    assert torch.equal(first.returns, first.alive.sum(0))
    assert torch.equal(first.alive, first.alive.cummin(0).values)
    assert not torch.equal(task.with_seed(9).adapt_batch(0), task.adapt_batch(0))


def test_the_carts_that_are_reported_are_not_those_that_chose_the_settings(example, monkeypatch):
    seen: list[str] = []

    def score(learner, tasks, **options):
        seen.extend(task.name for task in tasks)
        return {"return": 1.0}

    monkeypatch.setattr(example.wg, "score", score)
    example.main(meta_steps=1)
    chosen_on = {f"cart {fold(example.SEED, 'held out', index)}" for index in range(100)}
    assert len(set(seen)) == example.HELD_OUT
    assert not chosen_on & set(seen)


def test_physics_differ_from_task_to_task(example):
    lengths = {example.cart_task(seed).environment.envs[0].unwrapped.length for seed in range(4)}
    assert len(lengths) == 4


def test_the_loss_of_episodes_that_end_early_counts_living_steps_alone():
    torch.manual_seed(0)
    log_policy, values = torch.randn(4, 2, 3).log_softmax(2), torch.randn(4, 2)
    actions, rewards = torch.randint(3, (4, 2)), torch.randn(4, 2)
    alive = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    objective = ActorCritic()
    found = objective.loss(Episodes(log_policy, values, actions, rewards * alive, alive))
    total, steps = 0.0, 0
    for episode, length in ((0, 4), (1, 2)):
        one = Episodes(*(part[:length, episode : episode + 1] for part in (log_policy, values, actions, rewards)))
        total, steps = total + float(objective.loss(one)) * length, steps + length
    assert float(found) == pytest.approx(total / steps, rel=1e-5)
    everywhere = Episodes(log_policy, values, actions, rewards, torch.ones(4, 2))
    torch.testing.assert_close(objective.loss(everywhere), objective.loss(everywhere._replace(alive=None)))


def test_the_policy_gradient_is_that_of_the_loss_at_the_moves_taken(example):
    """With its moves and advantages held, the loss has the gradient that autograd gives."""
    torch.manual_seed(0)
    learner, task = wg.Learner(example.Policy().double(), warp="middle"), example.cart_task(1)
    theta, seeds = learner.start(0), task.adapt_batch(0)
    leaf = {name: value.detach().requires_grad_() for name, value in theta.items()}
    loss = task.loss(learner.bind(leaf, learner.buffers()), seeds)
    gradient = dict(zip(leaf, torch.autograd.grad(loss, list(leaf.values())), strict=True))
    direction = torch.randn_like(theta["value.weight"])

    def at(step: float) -> float:
        # The critic's head steers no move and stands in the advantage's square alone.
        moved = {**theta, "value.weight": theta["value.weight"] + step * direction}
        episodes = task.episodes(learner.bind(moved, learner.buffers()), seeds)
        advantage = task.objective.discounted(episodes.rewards) - episodes.values
        judged = (task.objective.value * advantage.square() * episodes.alive).sum() / episodes.alive.sum()
        return float(judged.detach())

    difference = (at(1e-5) - at(-1e-5)) / 2e-5
    assert float((gradient["value.weight"] * direction).sum()) == pytest.approx(difference, rel=1e-6)


def test_the_example_learns_the_warp_and_theta0(example, capsys):
    result = example.main(meta_steps=1)
    assert set(result) == {"before", "after"}
    assert "after meta-training" in capsys.readouterr().out
    assert "python examples/cartpole.py" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_meta_training_lengthens_the_episodes_of_new_carts():
    module = load_example()
    module.HELD_OUT, module.EPISODES, module.LENGTH = 6, 16, 100
    result = module.main()
    assert result["after"] > 1.5 * result["before"]


class Continuous(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x[:, 0]


def test_an_environment_of_another_kind_is_refused():
    task = wg.EnvironmentTask(lambda: gymnasium.make("CartPole-v1"), length=3, name="cart")
    with pytest.raises(
        wg.WarpgradError, match="task 'cart' needs a gymnasium vector environment with discrete actions"
    ):
        task.adapt_batch(0)
    with pytest.raises(wg.WarpgradError, match="make must be a function"):
        wg.EnvironmentTask(3, length=3)

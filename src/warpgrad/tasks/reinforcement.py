"""Reinforcement learning as a task: the batch is a tensor of episode seeds, the forward pass is the whole roll-out.

The advantage actor-critic objective of App. I, for an episode of T steps with policy π and value V:

    L = 1/T Σ_t [ −log π(a_t) · A_t + c_v A_t² + c_e Σ_a π(a)² ],    A_t = R_t − V_t,    R_t = r_t + γ R_{t+1}

where A_t is a constant in the first term, r_t is the reward of the action taken at t, and R_T = 0: an episode ends
where it ends. Σ π² is least for a uniform policy, so its coefficient keeps the policy open as an entropy bonus does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warpgrad.errors import require
from warpgrad.keys import generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Task, TaskFamily


class Episodes(NamedTuple):
    """What a roll-out returns; all tensors are time first, [steps, episodes]."""

    log_policy: Tensor
    """log π of every action at every step, [steps, episodes, actions]; carries the graph."""
    values: Tensor
    """V; carries the graph."""
    actions: Tensor
    rewards: Tensor
    alive: Tensor | None = None
    """1 where an episode was still going on, 0 after its end; None where all last to the end."""

    @property
    def returns(self) -> Tensor:
        """The undiscounted sum of rewards of each episode, which is reported."""
        return self.rewards.sum(dim=0)


@dataclass(frozen=True)
class ActorCritic:
    """The objective above, as a mean over episodes."""

    discount: float = 0.9
    """γ."""
    value: float = 0.1
    """c_v."""
    entropy: float = 0.03
    """c_e."""

    def discounted(self, rewards: Tensor) -> Tensor:
        """Compute the returns R_t for rewards [steps, episodes]."""
        result = rewards.clone()
        for t in range(len(rewards) - 2, -1, -1):
            result[t].add_(result[t + 1], alpha=self.discount)
        return result

    def loss(self, episodes: Episodes) -> Tensor:
        advantage = self.discounted(episodes.rewards) - episodes.values
        chosen = episodes.log_policy.gather(2, episodes.actions.unsqueeze(2)).squeeze(2)
        mean = _mean_over(episodes.alive)
        actor = -mean(chosen * advantage.detach())
        spread = mean(episodes.log_policy.exp().square().sum(dim=2))
        return actor + self.value * mean(advantage.square()) + self.entropy * spread


def _mean_over(alive: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return a function that averages over all steps, or over those at which episodes were still going on."""
    if alive is None:
        return torch.mean
    return lambda values: (values * alive).sum() / alive.sum()


def episode_seeds(count: int, *parts: int | str) -> Tensor:
    """Draw the seeds of `count` episodes, keyed by `parts`."""
    return torch.randint(2**63 - 1, (count,), generator=generator("episodes", *parts))


class EpisodeTask(Task):
    """A batch of episodes: one sample of the stream that Algorithm 3 learns from.

    What differs between episodes (the goal, say) is drawn by the episode's own seed, inside the roll-out.
    """

    def __init__(self, seed: int, episodes: int, objective: ActorCritic) -> None:
        self.name = f"episodes {seed}"
        self.seed = seed
        self.episodes = episodes
        self.objective = objective

    def adapt_batch(self, k: int) -> Tensor:
        return episode_seeds(self.episodes, self.seed, "adapt", k)

    def meta_batch(self, k: int) -> Tensor:
        return episode_seeds(self.episodes, self.seed, "meta", k)

    def test_batches(self) -> Iterable[Tensor]:
        return [episode_seeds(self.episodes, self.seed, "test")]

    def loss(self, forward: Forward, batch: Tensor) -> Tensor:
        return self.objective.loss(forward(batch))

    def metrics(self, forward: Forward, batch: Tensor) -> dict[str, float]:
        episodes: Episodes = forward(batch)
        return {"loss": float(self.objective.loss(episodes)), "return": float(episodes.returns.mean())}


class EpisodeFamily(TaskFamily):
    """A stream of batches of episodes."""

    def __init__(self, episodes: int = 30, objective: ActorCritic | None = None) -> None:
        require(episodes >= 1, f"episodes={episodes}: a batch has at least 1 episode.")
        self.episodes = episodes
        self.objective = objective or ActorCritic()

    def sample(self, seed: int) -> EpisodeTask:
        return EpisodeTask(seed, self.episodes, self.objective)

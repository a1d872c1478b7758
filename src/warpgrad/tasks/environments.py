"""Reinforcement learning on any gymnasium vector environment, with any policy module.

    EnvironmentTask(lambda: gymnasium.make_vec("CartPole-v1", num_envs=16), length=200, seed=3)

The learner's module is the policy: observations [n, ...] -> (logits of the actions [n, actions], values [n]). A batch
is a tensor of seeds, one per environment. The loss walks the episodes without a graph, then judges all that was seen in
one forward pass by the actor-critic objective of `warpgrad.tasks.reinforcement`, which the maze uses too.

Environments are reset, from the seeds, at every batch; moves are functions of the seeds and of the policy. So a batch
gives the same episodes each time, as long as the environment draws from the generator that `reset(seed=...)` seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warpgrad.errors import WarpgradError, expect, function, integer, short_repr
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Task
from warpgrad.tasks.reinforcement import ActorCritic, Episodes


class EnvironmentTask(Task):
    """Episodes of one vector environment; tasks differ in the environment that `make` builds.

    Example:
        >>> cart = wg.EnvironmentTask(lambda: gymnasium.make_vec("CartPole-v1", num_envs=4), length=50)
        >>> cart.with_seed(3).length
        50
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        length: int,
        objective: ActorCritic | None = None,
        seed: int = 0,
        name: str = "environment",
    ) -> None:
        """
        Args:
            make: Builds the vector environment, with a discrete action space; it is called once, at the first batch.
            length: Time steps after which an episode is over at the latest.
            objective: The actor-critic objective.
            seed: Keys the episodes.
            name: The name in messages.
        """
        self.name = name
        self.length = integer(length, "length", at_least=1)
        if objective is not None:
            expect(objective, ActorCritic, "objective", "ActorCritic()")
        self.objective = objective or ActorCritic()
        self._make = function(make, "make", 'lambda: gymnasium.make_vec("CartPole-v1", num_envs=16)')
        self._seed = integer(seed, "seed")
        self._environment: Any = None

    @property
    def environment(self) -> Any:
        """The vector environment."""
        if self._environment is None:
            made = self._make()
            if not hasattr(made, "num_envs") or not hasattr(getattr(made, "single_action_space", None), "n"):
                raise WarpgradError(
                    f"task '{self.name}' needs a gymnasium vector environment with discrete actions, not "
                    f"{short_repr(made)}: gymnasium.make_vec(...) makes one."
                )
            self._environment = made
        return self._environment

    def adapt_batch(self, k: int) -> Tensor:
        return self._seeds("adapt", k)

    def meta_batch(self, k: int) -> Tensor:
        return self._seeds("meta", k)

    def test_batches(self) -> Iterable[Tensor]:
        return [self._seeds("test", 0)]

    def with_seed(self, seed: int) -> EnvironmentTask:
        """Return the same environment with other episodes."""
        return EnvironmentTask(
            lambda: self.environment, length=self.length, objective=self.objective, seed=seed, name=self.name
        )

    def loss(self, forward: Forward, batch: Tensor) -> Tensor:
        return self.objective.loss(self.episodes(forward, batch))

    def metrics(self, forward: Forward, batch: Tensor) -> dict[str, float]:
        episodes = self.episodes(forward, batch)
        return {"loss": float(self.objective.loss(episodes).detach()), "return": float(episodes.returns.mean())}

    def episodes(self, forward: Forward, seeds: Tensor) -> Episodes:
        """Run a policy for one episode per seed; log π and V carry the graph."""
        observations, actions, rewards, alive = self._walk(forward, seeds)
        logits, values = forward(observations.flatten(0, 1))
        shape = actions.shape
        return Episodes(
            torch.log_softmax(logits, dim=-1).view(*shape, -1),
            values.reshape(shape),
            actions,
            rewards * alive,
            alive,
        )

    def _walk(self, forward: Forward, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return observations, actions, rewards and an alive mask, time first; stop when all episodes are over."""
        environment, numbers = self.environment, [int(seed) for seed in seeds]
        like = next(iter(forward.theta.values()))
        draw = generator(fold("moves", *numbers))
        seen, _ = environment.reset(seed=numbers)
        going = np.ones(len(numbers), dtype=bool)
        columns: tuple[list[Any], ...] = ([], [], [], [])
        for _ in range(self.length):
            observation = torch.as_tensor(np.asarray(seen), dtype=like.dtype, device=like.device)
            with torch.no_grad():
                logits, _ = forward(observation)
            chosen = torch.multinomial(logits.softmax(-1).double().cpu(), 1, generator=draw).squeeze(1)
            seen, earned, terminated, truncated, _ = environment.step(chosen.numpy())
            rewards = torch.as_tensor(np.asarray(earned), dtype=like.dtype)
            for column, value in zip(
                columns, (observation, chosen, rewards, torch.as_tensor(going.copy())), strict=True
            ):
                column.append(value)
            going &= ~(np.asarray(terminated) | np.asarray(truncated))
            if not going.any():
                break
        observations, actions, rewards, alive = (torch.stack(column) for column in columns)
        return observations, actions.to(like.device), rewards.to(like.device), alive.to(like)

    def _seeds(self, role: str, k: int) -> Tensor:
        count = self.environment.num_envs
        return torch.randint(2**31 - 1, (count,), generator=generator(self._seed, role, k))

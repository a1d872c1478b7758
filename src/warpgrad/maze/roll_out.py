"""An agent in the maze as one module: episode seeds in, whole episodes out.

The roll-out is a single forward pass, so a learner binds θ and φ once for all time steps. Moves are sampled with
numbers that are functions of (episode seed, time step): the same parameters and seeds always walk the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from warpgrad.maze.agents import Agent
from warpgrad.maze.random import uniforms
from warpgrad.maze.rules import MOVE, MOVES, Maze, MazeEpisodes
from warpgrad.tasks.reinforcement import Episodes


class MazeRollOut(nn.Module):
    """`episodes = roll_out(seeds)`, with seeds an integer tensor, one per episode."""

    def __init__(self, agent: Agent, maze: Maze, *, taped: bool = False) -> None:
        """Put `agent` into `maze`; `taped` uses the agent's tape, if any: faster, but not twice differentiable."""
        super().__init__()
        self.agent, self.maze, self.taped = agent, maze, taped

    def forward(self, seeds: Tensor, *, forget: bool = False) -> Episodes:
        """Roll out episodes; `forget` resets the agent's state before every step, so that it acts without memory."""
        return self.walk(seeds, forget=forget)[0]

    def walk(self, seeds: Tensor, *, forget: bool = False) -> tuple[Episodes, MazeEpisodes, NDArray[np.intp]]:
        """Return the episodes, the final maze, and where each agent stood at each time step, [steps, episodes]."""
        agent, like = self.agent, self.agent.policy.weight
        numbers = seeds.cpu().numpy()
        # Row t is complete when it is seen, so views of it may enter the graph before later rows are written.
        maze = MazeEpisodes(self.maze, numbers, np.float64 if like.dtype == torch.float64 else np.float32)
        chances = uniforms(numbers, "move", self.maze.length)
        observations = torch.from_numpy(maze.observations).unbind(0)
        actions = np.empty((self.maze.length, len(numbers)), np.int64)
        places = np.empty_like(actions)
        policy, bias = like.detach(), agent.policy.bias.detach()
        # Without gradients there is no backward pass to keep anything for.
        taped = self.taped and torch.is_grad_enabled() and not forget
        tape = agent.tape(self.maze.length, len(numbers)) if taped else None
        step = agent.stepper()
        begin = state = agent.start(observations[0].to(like.device))
        hidden: list[Tensor] = []
        for t in range(self.maze.length):
            places[t] = maze.positions
            x = observations[t].to(like.device)
            if tape is not None:
                h = tape.step(x)
            else:
                h, state = step(x, begin if forget else state)
                hidden.append(h)
            # Policy and value enter the graph for all steps at once, below; here only a move is needed.
            logits = torch.addmm(bias, h.detach(), policy.t()).cpu().numpy()
            actions[t] = choose(np.exp(logits - logits.max(axis=1, keepdims=True)), chances[t])
            maze.step(actions[t])
        every = torch.stack(hidden) if tape is None else tape.joined()
        episodes = Episodes(
            F.log_softmax(agent.policy(every), dim=2),
            agent.value(every).squeeze(2),
            torch.from_numpy(actions).to(like.device),
            torch.from_numpy(maze.rewards).to(like.device),
        )
        return episodes, maze, places


def choose(weights: NDArray[np.floating], chances: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose a column for each row, in proportion to its weights, by one uniform number per row."""
    totals = weights.cumsum(axis=1)
    return np.asarray((totals[:, :-1] <= (chances * totals[:, -1])[:, None]).sum(axis=1))


Policy = Callable[[NDArray[np.floating]], NDArray[np.floating]]
"""Weights of the four moves, [episodes, 4], from observations [episodes, 17] alone."""

_AHEAD = np.array([4 + 3 * down + right for down, right in MOVES])
"""The place in the 3×3 view of the cell that a move leads to."""

_BACK = np.array([1, 0, 3, 2])
"""The move that undoes each move."""


def random_moves(observations: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return equal weights for all moves, whether into walls or not."""
    return np.ones((len(observations), len(MOVES)))


def wandering(observations: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return equal weights for all open ways except back, which is taken only out of a dead end.

    This is a good walk without memory.
    """
    is_open = 1.0 - observations[:, _AHEAD]
    onward = is_open * (1.0 - observations[:, MOVE + _BACK])
    return np.where(onward.any(axis=1, keepdims=True), onward, is_open)


def returns_of(policy: Policy, maze: Maze, seeds: Tensor) -> NDArray[np.floating]:
    """Compute the return of each episode under a policy without memory."""
    numbers = seeds.numpy()
    episodes = MazeEpisodes(maze, numbers)
    chances = uniforms(numbers, "move", maze.length)
    for t in range(maze.length):
        episodes.step(choose(policy(episodes.observations[t]), chances[t]))
    return np.asarray(episodes.rewards.sum(axis=0))

"""Returns that need no learning, to read an agent's return against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from warpgrad.maze.draws import uniforms
from warpgrad.maze.roll_out import choose
from warpgrad.maze.rules import MOVE, MOVES, Maze, MazeEpisodes

Policy = Callable[[NDArray[np.floating]], NDArray[np.floating]]
"""Weights of the four moves, [episodes, 4], from observations [episodes, 17] alone."""

_AHEAD = np.array([4 + 3 * down + right for down, right in MOVES])
"""Where the cell that a move leads to stands in the 3×3 view."""

_BACK = np.array([1, 0, 3, 2])
"""The move that undoes each move."""


def random_moves(observations: NDArray[np.floating]) -> NDArray[np.floating]:
    """All moves alike, walls or not."""
    return np.ones((len(observations), len(MOVES)))


def wandering(observations: NDArray[np.floating]) -> NDArray[np.floating]:
    """Any open way but the one it came by, which is taken only out of a dead end: a good walk without memory."""
    is_open = 1.0 - observations[:, _AHEAD]
    onward = is_open * (1.0 - observations[:, MOVE + _BACK])
    return np.where(onward.any(axis=1, keepdims=True), onward, is_open)


def returns_of(policy: Policy, maze: Maze, seeds: Tensor) -> NDArray[np.floating]:
    """The return of each episode under a policy without memory."""
    numbers = seeds.numpy()
    episodes = MazeEpisodes(maze, numbers)
    chances = uniforms(numbers, "move", maze.length)
    for t in range(maze.length):
        episodes.step(choose(policy(episodes.observations[t]), chances[t]))
    total: NDArray[np.floating] = episodes.rewards.sum(axis=0)
    return total

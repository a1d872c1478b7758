"""The rules of the maze, for many episodes in step.

The maze is an 11×11 room inside a border, with a pillar wherever row and column are both even, except at the centre.
The agent starts at the centre; the goal is any other free cell and stays for the whole episode. There are four moves;
walking into a wall means staying. On the goal, the agent gets a reward and is moved to a random free cell that is not
the goal. It sees 17 numbers:

    0-8    walls in the 3×3 cells around it, row by row
    9      1
    10     t / length
    11     the last reward
    12-15  the last move, one-hot (nothing before the first)
    16     unused, as in the original

Goal, teleports and moves are functions of the episode's seed, so an episode can be reproduced anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from warpgrad.errors import require
from warpgrad.maze.random import uniforms

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""Row and column of a step up, down, to the left, to the right."""

BIAS, TIME, REWARD, MOVE, FEATURES = 9, 10, 11, 12, 17
"""The places of the entries of an observation, and how many numbers it has."""

Integers = NDArray[np.intp]


@dataclass(frozen=True)
class Maze:
    """The fixed maze; an episode adds a goal. Free cells are numbered row by row."""

    size: int = 11
    """Cells along each side, border not counted; odd, so that there is a centre."""
    length: int = 200
    """The number of time steps of an episode."""
    reward: float = 10.0
    """The reward for reaching the goal."""
    wall_penalty: float = 0.0
    """The penalty that is subtracted for walking into a wall."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.size, int) and self.size >= 3 and self.size % 2 != 0,
            f"size={self.size}: a maze needs an odd number of cells along each side, 3 or more.",
        )
        require(
            isinstance(self.length, int) and self.length >= 1,
            f"length={self.length}: the number of time steps of an episode must be an integer of at least 1.",
        )
        require(0 < self.reward < math.inf, f"reward={self.reward}: it must be finite and greater than 0.")
        require(
            0 <= self.wall_penalty < math.inf,
            f"wall_penalty={self.wall_penalty}: it is subtracted, so it must be finite and at least 0.",
        )

    @cached_property
    def walls(self) -> NDArray[np.bool_]:
        """[size + 2, size + 2], True where an agent cannot stand."""
        side = self.size + 2
        even = np.arange(side) % 2 == 0
        walls: NDArray[np.bool_] = even[:, None] & even
        walls[[0, -1]] = walls[:, [0, -1]] = True
        walls[side // 2, side // 2] = False
        return walls

    @cached_property
    def cells(self) -> Integers:
        """Row and column of every free cell."""
        return np.argwhere(~self.walls)

    @cached_property
    def centre(self) -> int:
        return self._number(self.walls.shape[0] // 2, self.walls.shape[0] // 2)

    @cached_property
    def neighbours(self) -> Integers:
        """Where each move leads from each cell, the cell itself where there is a wall; flat, cell · 4 + move."""
        found = [
            cell if self.walls[row + down, column + right] else self._number(row + down, column + right)
            for cell, (row, column) in enumerate(self.cells)
            for down, right in MOVES
        ]
        return np.array(found)

    @cached_property
    def views(self) -> NDArray[np.float64]:
        """The 3×3 walls around every free cell, [cells, 9]."""
        return (
            np.array([self.walls[row - 1 : row + 2, column - 1 : column + 2].ravel() for row, column in self.cells])
            * 1.0
        )

    def _number(self, row: int, column: int) -> int:
        return int(np.flatnonzero((self.cells == (row, column)).all(axis=1))[0])


class MazeEpisodes:
    """Episodes that run in step, one per seed. All observations and rewards are kept, time first."""

    def __init__(self, maze: Maze, seeds: ArrayLike, dtype: DTypeLike = np.float32) -> None:
        self.maze = maze
        seeds = np.atleast_1d(np.asarray(seeds))
        count, free = len(seeds), len(maze.cells)
        self.goals = _skipping((uniforms(seeds, "goal", 1)[0] * (free - 1)).astype(np.intp), maze.centre)
        self._teleports = _skipping((uniforms(seeds, "teleport", maze.length) * (free - 1)).astype(np.intp), self.goals)
        self._views = maze.views.astype(dtype)
        self._penalty = maze.wall_penalty
        self._numbers = np.arange(count)
        self.t = 0
        self.positions: Integers = np.full(count, maze.centre)
        self.observations: NDArray[Any] = np.zeros((maze.length + 1, count, FEATURES), dtype)
        self.observations[:, :, BIAS] = 1.0
        self.observations[:, :, TIME] = (np.arange(maze.length + 1) / maze.length)[:, None]
        self.observations[0, :, :BIAS] = self._views[self.positions]
        self.rewards: NDArray[Any] = np.zeros((maze.length, count), dtype)

    @property
    def over(self) -> bool:
        return self.t == self.maze.length

    def step(self, moves: Integers) -> None:
        """Make a move in all episodes; t grows by one, and row t of `observations` is what is seen now."""
        t, seen = self.t, self.observations[self.t + 1]
        reached = self.maze.neighbours[self.positions * 4 + moves]
        found = reached == self.goals
        rewards = found * self.maze.reward
        if self._penalty:
            rewards = rewards - (reached == self.positions) * self._penalty
        self.positions = np.where(found, self._teleports[t], reached)
        self.rewards[t] = rewards
        seen[:, :BIAS] = self._views[self.positions]
        seen[:, REWARD] = rewards
        seen[self._numbers, MOVE + moves] = 1.0
        self.t = t + 1


def _skipping(numbers: Integers, left_out: Integers | int) -> Integers:
    """Turn a draw from n − 1 values into a draw from n values that is never `left_out`."""
    return numbers + (numbers >= left_out)

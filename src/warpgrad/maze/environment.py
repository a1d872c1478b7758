"""The maze for gymnasium: natively batched, and one episode at a time.

    import gymnasium
    import warpgrad.maze.environment
    many = gymnasium.make_vec("warpgrad/Maze-v0", num_envs=30, vectorization_mode="vector_entry_point")
    one = gymnasium.make("warpgrad/Maze-v0")

`reset(seed=s)` begins the episode with seed s (environment i of a batch: s + i; or give a list). Without a seed, the
seed of an environment's next episode follows from that of its last one, so one seed repeats a whole run. An episode
ends by truncation at its length; the next step begins a new one, whatever the action (gymnasium's next-step mode).
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from warpgrad.errors import WarpgradError, require
from warpgrad.lazy import naming_extras
from warpgrad.maze.random import following_seeds
from warpgrad.maze.rules import FEATURES, MOVES, REWARD, Maze, MazeEpisodes

with naming_extras():
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space

Floats: TypeAlias = NDArray[np.float32]
Flags: TypeAlias = NDArray[np.bool_]
Actions: TypeAlias = NDArray[np.int64]
Infos: TypeAlias = dict[str, Any]


class MazeVectorEnv(VectorEnv[Floats, Actions, NDArray[Any]]):
    """Many mazes in step, without a loop over them."""

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        size: int = 11,
        length: int = 200,
        reward: float = 10.0,
        wall_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Build `num_envs` mazes with settings as in `warpgrad.maze.Maze`."""
        super().__init__()
        require(num_envs >= 1, f"num_envs={num_envs}: there must be at least 1 maze.")
        require(
            render_mode in (None, "rgb_array"), f"render_mode={render_mode!r} is unknown; choose rgb_array or none."
        )
        self.maze = Maze(size, length, reward, wall_penalty)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = observation_space(self.maze)
        self.single_action_space = spaces.Discrete(len(MOVES))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeds: NDArray[np.int64] | None = None
        self._episodes: MazeEpisodes | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, Infos]:
        single = int(seed) if isinstance(seed, int | np.integer) else None
        super().reset(seed=single, options=options)
        if single is not None:
            given: list[int | None] = [single + place for place in range(self.num_envs)]
        else:
            given = [None] * self.num_envs if seed is None else list(cast(list[int | None], seed))
        require(
            len(given) == self.num_envs and not any(own is not None and not 0 <= own < 2**63 for own in given),
            f"reset(seed=...) needs a number from 0 to 2**63 - 1, or None, for each of the {self.num_envs} mazes.",
        )
        if self._seeds is None:
            others = self.np_random.integers(2**63, size=self.num_envs, dtype=np.int64)
        else:
            others = following_seeds(self._seeds)
        own_seeds = [other if own is None else own for own, other in zip(given, others, strict=True)]
        self._seeds = np.array(own_seeds, dtype=np.int64)
        self._episodes = MazeEpisodes(self.maze, self._seeds)
        return self._observed(), {}

    def step(self, actions: Actions) -> tuple[Floats, NDArray[Any], NDArray[Any], NDArray[Any], Infos]:
        if self.episodes.over:
            observations, infos = self.reset()
            return observations, np.zeros(self.num_envs, np.float64), self._flags(False), self._flags(False), infos
        moves = np.asarray(actions)
        whole = np.issubdtype(moves.dtype, np.integer)
        require(
            whole and moves.shape == (self.num_envs,) and not (moves < 0).any() and not (moves >= len(MOVES)).any(),
            f"step(...) needs one of the moves 0, 1, 2, 3 for each of the {self.num_envs} mazes.",
        )
        self.episodes.step(moves.astype(np.intp))
        rewards = self.episodes.rewards[self.episodes.t - 1].astype(np.float64)
        return self._observed(), rewards, self._flags(False), self._flags(self.episodes.over), {}

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        if self.render_mode is None:
            return None
        places = zip(self.episodes.goals, self.episodes.positions, strict=True)
        return tuple(picture(self.maze, int(goal), int(position)) for goal, position in places)

    @property
    def episodes(self) -> MazeEpisodes:
        """The episodes under way."""
        if self._episodes is None:
            raise WarpgradError("call reset() before the first step: no episode has begun.")
        return self._episodes

    def _observed(self) -> Floats:
        return np.array(self.episodes.observations[self.episodes.t])

    def _flags(self, value: bool) -> Flags:
        return np.full(self.num_envs, value)


class MazeEnv(gymnasium.Env[Floats, np.int64]):
    """One maze: a view on a batch of one."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # type: ignore[misc]

    def __init__(
        self,
        *,
        size: int = 11,
        length: int = 200,
        reward: float = 10.0,
        wall_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Build the maze with settings as in `warpgrad.maze.Maze`."""
        self._batch = MazeVectorEnv(
            1, size=size, length=length, reward=reward, wall_penalty=wall_penalty, render_mode=render_mode
        )
        self.maze = self._batch.maze
        self.render_mode = render_mode
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, Infos]:
        super().reset(seed=seed, options=options)
        observations, _ = self._batch.reset(seed=seed)
        return observations[0], {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Infos]:
        require(not self._batch.episodes.over, "the episode is over: call reset() before the next step.")
        observations, rewards, terminations, truncations, _ = self._batch.step(np.array([action]))
        return observations[0], float(rewards[0]), bool(terminations[0]), bool(truncations[0]), {}

    def render(self) -> NDArray[np.uint8] | None:
        frames = self._batch.render()
        return None if frames is None else frames[0]


def observation_space(maze: Maze) -> spaces.Box:
    """Return the space of observations, in which all numbers except the reward lie between 0 and 1."""
    low, high = np.zeros(FEATURES, np.float32), np.ones(FEATURES, np.float32)
    low[REWARD], high[REWARD] = min(0.0, -maze.wall_penalty, maze.reward), max(0.0, -maze.wall_penalty, maze.reward)
    return spaces.Box(low, high, dtype=np.float32)


gymnasium.register(
    id="warpgrad/Maze-v0",
    entry_point="warpgrad.maze.environment:MazeEnv",
    vector_entry_point="warpgrad.maze.environment:MazeVectorEnv",
)


FLOOR, WALL, GOAL, AGENT = (244, 244, 240), (61, 69, 78), (0, 158, 115), (193, 39, 45)


def picture(maze: Maze, goal: int, position: int | None = None, pixels: int = 8) -> NDArray[np.uint8]:
    """Draw the maze with its goal and, if `position` is given, the agent; a cell is a square of `pixels`."""
    image = np.where(maze.walls[..., None], np.array(WALL), np.array(FLOOR)).astype(np.uint8)
    image[tuple(maze.cells[goal])] = GOAL
    image = image.repeat(pixels, axis=0).repeat(pixels, axis=1)
    if position is not None:
        row, column = maze.cells[position] * pixels
        inset = pixels // 5
        image[row + inset : row + pixels - inset, column + inset : column + pixels - inset] = AGENT
    return image

"""The rules of the maze, its gymnasium environments, and the keyed draws behind them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from warpgrad.errors import WarpgradError
from warpgrad.maze import Maze, MazeEpisodes
from warpgrad.maze.environment import AGENT, GOAL, MazeEnv, MazeVectorEnv, picture
from warpgrad.maze.random import following_seeds, uniforms
from warpgrad.maze.roll_out import random_moves, returns_of, wandering
from warpgrad.tasks.reinforcement import episode_seeds

UP, DOWN, LEFT, RIGHT = range(4)


def cell(maze: Maze, row: int, column: int) -> int:
    return [tuple(place) for place in maze.cells.tolist()].index((row, column))


def walked(maze: Maze, seeds, moves) -> MazeEpisodes:
    episodes = MazeEpisodes(maze, seeds)
    for move in moves:
        episodes.step(np.asarray(move))
    return episodes


def random_walk(count: int, length: int, key: int = 0) -> np.ndarray:
    return np.random.default_rng(key).integers(0, 4, size=(length, count))


def test_the_maze_of_the_paper():
    """13×13 with the border, 25 pillars less the one at the centre, 97 free cells, start at the centre."""
    maze = Maze()
    for row in range(13):
        for column in range(13):
            border = row in (0, 12) or column in (0, 12)
            pillar = row % 2 == 0 and column % 2 == 0 and (row, column) != (6, 6)
            assert maze.walls[row, column] == (border or pillar)
    assert len(maze.cells) == 121 - 25 + 1
    assert tuple(maze.cells[maze.centre]) == (6, 6)


def test_moves_and_walls():
    maze = Maze()
    at = cell(maze, 1, 1)
    neighbours = maze.neighbours.reshape(-1, 4)
    assert neighbours[at].tolist() == [at, cell(maze, 2, 1), at, cell(maze, 1, 2)]
    below = cell(maze, 2, 1)  # a pillar to the right, the border to the left
    assert neighbours[below].tolist() == [at, cell(maze, 3, 1), below, below]


def test_an_episode_by_hand():
    """Walk to the goal: the reward and the move are seen at once, then the agent stands on another cell."""
    maze = Maze(size=3, length=6, wall_penalty=0.5)  # the ring around the centre, and the centre
    goals = MazeEpisodes(maze, np.arange(64)).goals
    target = cell(maze, 1, 2)
    seed = int(np.flatnonzero(goals == target)[0])
    episodes = MazeEpisodes(maze, [seed])
    begin = episodes.observations[0, 0]
    assert begin.tolist() == [0.0] * 9 + [1.0, 0.0, 0.0] + [0.0] * 5  # pillars and border are out of sight
    episodes.step(np.array([DOWN]))
    assert tuple(maze.cells[episodes.positions[0]]) == (3, 2)
    seen = episodes.observations[1, 0]
    assert seen[:9].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert seen[9:].tolist() == pytest.approx([1, 1 / 6, 0, 0, 1, 0, 0, 0])
    episodes.step(np.array([DOWN]))  # into the border
    assert tuple(maze.cells[episodes.positions[0]]) == (3, 2)
    assert episodes.observations[2, 0, 9:].tolist() == pytest.approx([1, 2 / 6, -0.5, 0, 1, 0, 0, 0])
    episodes.step(np.array([UP]))
    episodes.step(np.array([UP]))
    assert episodes.rewards[:4, 0].tolist() == [0.0, -0.5, 0.0, 10.0]
    assert episodes.observations[4, 0, 9:].tolist() == pytest.approx([1, 4 / 6, 10, 1, 0, 0, 0, 0])
    assert episodes.positions[0] != target
    assert not episodes.over
    assert episodes.goals[0] == target


def test_goals_and_teleports_are_uniform_over_what_is_allowed():
    maze = Maze()
    seeds = np.arange(20_000)
    many = MazeEpisodes(Maze(length=1), seeds)
    counts = np.bincount(many.goals, minlength=97)
    assert counts[maze.centre] == 0
    expected = 20_000 / 96
    statistic = ((np.delete(counts, maze.centre) - expected) ** 2 / expected).sum()
    assert statistic < 141  # the 0.2 % point of χ² with 95 degrees of freedom
    # Goals that are one move away are found at once, and whoever finds one is put somewhere else.
    ways = maze.neighbours[4 * maze.centre : 4 * maze.centre + 4]
    beside = np.isin(many.goals, ways)
    found = MazeEpisodes(Maze(length=1), seeds[beside])
    move = (found.goals[:, None] == ways).argmax(axis=1)
    found.step(move)
    assert (found.rewards > 0).all()
    assert (found.positions != found.goals).all()
    assert ((found.positions >= 0) & (found.positions <= 96)).all()
    assert len(np.unique(found.positions)) == 97


@given(st.integers(0, 2**62), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_no_walk_leaves_the_free_cells_or_loses_a_reward(seed, count):
    maze = Maze(size=5, length=40)
    moves = random_walk(count, 40, seed % 1000)
    episodes = walked(maze, seed + np.arange(count), moves)
    assert episodes.over
    assert ((episodes.positions >= 0) & (episodes.positions < len(maze.cells))).all()
    assert set(np.unique(episodes.rewards)) <= {0.0, 10.0}
    np.testing.assert_array_equal(episodes.observations[1:, :, 11], episodes.rewards)
    np.testing.assert_array_equal(episodes.observations[1:, :, 12:16].argmax(axis=2), moves)
    assert (episodes.observations[..., 16] == 0).all()


def test_draws_depend_on_seed_role_and_step_alone():
    batch = uniforms([5, 6, 2**62], "move", 7)
    np.testing.assert_array_equal(batch[:, 1], uniforms(6, "move", 7)[:, 0])
    np.testing.assert_array_equal(batch[:3], uniforms([5, 6, 2**62], "move", 3))
    assert not (batch == uniforms([5, 6, 2**62], "goal", 7)).any()
    many = uniforms(np.arange(2000), "move", 50)
    assert many.min() >= 0.0
    assert many.max() < 1.0
    assert many.mean() == pytest.approx(0.5, abs=0.005)
    assert many.var() == pytest.approx(1 / 12, abs=0.002)
    assert abs(np.corrcoef(many[:-1].ravel(), many[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(many[:, :-1].ravel(), many[:, 1:].ravel())[0, 1]) < 0.01
    assert (following_seeds([3, 4]) >= 0).all()


@pytest.mark.parametrize("options", [{}, {"size": 5, "length": 20, "reward": 1.0, "wall_penalty": 0.1}])
def test_gymnasium_accepts_the_single_environment(options):
    check_env(gymnasium.make("warpgrad/Maze-v0", render_mode="rgb_array", **options).unwrapped)


def test_many_mazes_equal_single_ones_step_for_step():
    """Through two ends of episodes: rewards, observations, truncations, and the episodes that follow."""
    options = {"size": 5, "length": 15, "wall_penalty": 0.25}
    many = MazeVectorEnv(4, **options)
    ones = [MazeEnv(**options) for _ in range(4)]
    seen, _ = many.reset(seed=11)
    for number, one in enumerate(ones):
        np.testing.assert_array_equal(one.reset(seed=11 + number)[0], seen[number])
    over = False
    for actions in random_walk(4, 47):
        seen, rewards, terminations, truncations, _ = many.step(actions)
        assert many.observation_space.contains(seen)
        assert not terminations.any()
        for number, one in enumerate(ones):
            found = (one.reset()[0], 0.0, False, False) if over else one.step(actions[number])[:4]
            np.testing.assert_array_equal(found[0], seen[number])
            assert found[1:] == (rewards[number], terminations[number], truncations[number])
        over = bool(truncations.all())
        assert over == bool(truncations.any())
    assert rewards.dtype == np.float64


def test_a_seed_repeats_a_whole_run_and_seeds_differ():
    def run(seed):
        env = MazeVectorEnv(3, size=5, length=10)
        return [env.reset(seed=seed)[0], *(env.step(actions)[0] for actions in random_walk(3, 30))]

    first, again, other = run(4), run(4), run(400)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    env = MazeVectorEnv(2, size=5, length=10)
    np.testing.assert_array_equal(env.reset(seed=[7, 7])[0], env.reset(seed=[7, 7])[0])
    env.reset()  # unseeded: goes on from the last episode, the same way for equal ones
    assert env.episodes.goals[0] == env.episodes.goals[1]


def test_the_registered_batch_is_the_native_one():
    env = gymnasium.make_vec("warpgrad/Maze-v0", num_envs=6, vectorization_mode="vector_entry_point", length=9)
    assert isinstance(env.unwrapped, MazeVectorEnv)
    assert isinstance(env, VectorEnv)
    seen, _ = env.reset(seed=1)
    assert seen.shape == (6, 17)
    assert env.step(env.action_space.sample())[1].shape == (6,)


def test_rendering_shows_walls_goal_and_agent():
    env = MazeVectorEnv(2, render_mode="rgb_array")
    env.reset(seed=0)
    first, second = env.render()
    assert first.shape == second.shape == (13 * 8, 13 * 8, 3)
    assert first.dtype == np.uint8
    maze = env.maze
    row, column = maze.cells[env.episodes.goals[0]] * 8
    assert tuple(first[row, column]) == GOAL
    assert tuple(first[6 * 8 + 4, 6 * 8 + 4]) == AGENT
    assert tuple(picture(maze, 0)[6 * 8 + 4, 6 * 8 + 4]) != AGENT
    assert MazeVectorEnv(1).render() is None
    np.testing.assert_array_equal(first, _single_frame(0))


def _single_frame(seed):
    env = MazeEnv(render_mode="rgb_array")
    env.reset(seed=seed)
    return env.render()


def test_wandering_never_walks_into_a_wall_nor_turns_without_need():
    maze = Maze(size=5, length=60, reward=1e-6, wall_penalty=1.0)
    seeds = episode_seeds(20, 0)
    assert (returns_of(wandering, maze, seeds) >= 0).all()
    assert (returns_of(random_moves, maze, seeds) < 0).all()
    dead_end = np.ones((1, 17))
    dead_end[0, 3], dead_end[0, 12:16] = 0.0, (0, 0, 0, 1)  # open to the left only, come by a step to the right
    assert wandering(dead_end).argmax() == LEFT
    paper = Maze()
    many = episode_seeds(200, 1)
    assert returns_of(wandering, paper, many).mean() > returns_of(random_moves, paper, many).mean() > 0


def test_what_cannot_be_is_named():
    with pytest.raises(WarpgradError, match=r"size=4: a maze needs an odd number"):
        Maze(size=4)
    for changes, words in (
        ({"size": 5.0}, "size=5.0: a maze needs an odd number"),
        ({"length": 0}, "length=0"),
        ({"length": 2.5}, "length=2.5"),
        ({"reward": 0.0}, "reward=0.0: it must be finite and greater than 0"),
        ({"reward": float("nan")}, "reward=nan"),
        ({"wall_penalty": -1.0}, "wall_penalty=-1.0"),
        ({"wall_penalty": float("inf")}, "wall_penalty=inf"),
    ):
        with pytest.raises(WarpgradError, match=words):
            Maze(**changes)
    with pytest.raises(WarpgradError, match=r"call reset\(\) before the first step"):
        MazeVectorEnv(1).step(np.array([0]))
    for seed in ([1, 2], 2**63, [1, 2, -1]):
        with pytest.raises(WarpgradError, match=r"needs a number from 0 .* or None, for each of the 3 mazes"):
            MazeVectorEnv(3).reset(seed=seed)
    started = MazeVectorEnv(2)
    started.reset(seed=0)
    for actions in ([0, 4], [-1, 0], [0], [0.9, 1.7]):
        with pytest.raises(WarpgradError, match=r"needs one of the moves 0, 1, 2, 3 for each of the 2 mazes"):
            started.step(np.array(actions))
    with pytest.raises(WarpgradError, match=r"render_mode='human' is unknown"):
        MazeEnv(render_mode="human")
    with pytest.raises(WarpgradError, match=r"num_envs=0"):
        MazeVectorEnv(0)
    env = MazeEnv(size=3, length=1)
    env.reset(seed=0)
    env.step(np.int64(0))
    with pytest.raises(WarpgradError, match=r"the episode is over"):
        env.step(np.int64(0))


def test_seeds_of_any_integer_kind_and_for_some_of_the_mazes():
    first, second = MazeVectorEnv(2), MazeVectorEnv(2)
    first.reset(seed=np.int64(3))
    second.reset(seed=[3, None])
    goals = [env.episodes.goals.tolist() for env in (first, second)]
    assert goals[0][0] == goals[1][0]
    second.reset(seed=[None, 4])
    assert second.episodes.goals[1] == goals[0][1]

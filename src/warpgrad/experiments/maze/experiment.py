"""Experiment 2.8: meta-reinforcement learning in a maze (§4.3 c.1, App. I).

    warpgrad run maze --method warp-rnn --preset small
    warpgrad reproduce maze --preset small --seeds 4 --workers 2

Each episode hides the goal elsewhere; an agent must find it, remember it, and return to it from wherever it is sent.
An update is one batch of 30 episodes: θ moves on every batch, φ on every 30th (Algorithm 3, in-place objective,
C = multi-task). Agents without a warp have θ alone. The paper's "episodes" are updates.

| method                                        | θ                                | φ                          |
|-----------------------------------------------|----------------------------------|----------------------------|
| `warp-rnn`                                    | RNN and heads                    | meta-LSTM that gates them  |
| `rnn`                                         | RNN and heads                    |                            |
| `hyperrnn`                                    | the network of `warp-rnn`, whole |                            |
| `t-nets-rnn`                                  | RNN and heads                    | three linear projections   |
| `hebbian`, `simple-`, `retroactive-modulation`| RNN with plastic weights, heads  |                            |
| `memoryless`                                  | one layer and heads, for reference |                          |
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from warpgrad.algorithms import Continual
from warpgrad.algorithms.method import Method
from warpgrad.experiments.base import Execution, Experiment, require_users
from warpgrad.experiments.maze import page
from warpgrad.experiments.maze.config import DECLARATION, MazeConfig
from warpgrad.experiments.maze.evaluation import evaluated, mean_return
from warpgrad.experiments.methods import Recipe, adam, keyed
from warpgrad.experiments.runner import meta_trained
from warpgrad.initialisers import MultiTask
from warpgrad.maze import WARPED, AgentOptions, Maze, build_learner
from warpgrad.objectives import InPlace
from warpgrad.rules import SGD
from warpgrad.tasks.reinforcement import ActorCritic, EpisodeFamily, episode_seeds
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.saving import load_learner

_METHODS_OF = {
    "context": ("warp-rnn", "hyperrnn"),
    "gate_bias": ("warp-rnn", "hyperrnn"),
    "transform": ("t-nets-rnn",),
    "warp_every": WARPED,
    "meta_lr": WARPED,
}
"""Settings that mean nothing to the other agents."""


class MazeNavigation(Experiment[MazeConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: MazeConfig) -> MazeConfig:
        super().check(config)
        require_users(config, self.preset(config.preset, config.method), _METHODS_OF)
        maze_of(config)
        return config

    def train(self, config: MazeConfig, execution: Execution) -> int:
        held_out = episode_seeds(config.validation_episodes, config.seed, "validation")
        algorithm = Continual(tasks=1, batches=config.warp_every)
        return meta_trained(
            self,
            config,
            execution,
            Recipe(build(config), algorithm, adam(theta0=config.lr, phi=config.meta_lr), config.clip),
            EpisodeFamily(config.episodes, ActorCritic(config.discount, config.value, config.entropy)),
            validate=lambda learner: {"return": mean_return(learner, held_out)},
            validate_every=config.validate_every,
        )

    def evaluate(self, config: MazeConfig, directory: Path) -> dict[str, Any]:
        learner = load_learner(build(config), newest_checkpoint(directory))
        return evaluated(learner, episode_seeds(config.test_episodes, config.seed, "test"))


def maze_of(config: MazeConfig) -> Maze:
    return Maze(config.size, config.length, config.reward, config.wall_penalty)


def build(config: MazeConfig) -> Method:
    """Build the agent in its maze, with weights drawn from the seed, and the way it learns.

    The step of the rule is discarded: in Algorithm 3 the single θ of the stream is updated by C alone.
    """
    options = AgentOptions(
        config.hidden, config.context, config.gate_bias, config.transform, taped=True
    )  # Algorithm 3 differentiates once
    make = partial(build_learner, config.method, maze_of(config), options, config.device)
    learner = keyed(config.seed, "weights", make)
    return Method(learner, SGD(config.lr), InPlace() if config.method in WARPED else None, MultiTask())


EXPERIMENT = MazeNavigation()

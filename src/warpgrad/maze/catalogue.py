"""The agents of the maze experiment by name, as learners: which parameters are θ and which are φ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from warpgrad.errors import require
from warpgrad.maze.agents import Agent, MemorylessAgent, RNNAgent, TNetsAgent, WarpAgent
from warpgrad.maze.plasticity import HebbianAgent, RetroactiveModulationAgent, SimpleModulationAgent
from warpgrad.maze.roll_out import MazeRollOut
from warpgrad.maze.rules import FEATURES, MOVES, Maze
from warpgrad.model.learner import Learner


@dataclass(frozen=True)
class AgentOptions:
    """The options of an agent; each matters only to the agents that its description names."""

    hidden: int = 100
    """The number of units of the RNN, for all agents."""
    context: int = 100
    """The number of units of the meta-LSTM, for Warp-RNN and HyperRNN."""
    gate_bias: float | None = None
    """The initial bias of the gates, for Warp-RNN and HyperRNN; None for no bias, as in the paper."""
    transform: Literal["identity", "drawn"] = "identity"
    """The initial value of the T's, for T-Nets-RNN."""
    taped: bool = False
    """Use the agent's tape, Warp-RNN, HyperRNN and the plastic ones; for first-order objectives."""


AGENTS: dict[str, Callable[..., Agent]] = {
    "warp-rnn": WarpAgent,
    "rnn": RNNAgent,
    "hyperrnn": WarpAgent,
    "t-nets-rnn": TNetsAgent,
    "hebbian": HebbianAgent,
    "simple-modulation": SimpleModulationAgent,
    "retroactive-modulation": RetroactiveModulationAgent,
    "memoryless": MemorylessAgent,
}

OPTIONS = {
    **dict.fromkeys(("warp-rnn", "hyperrnn"), ("context", "gate_bias")),
    "t-nets-rnn": ("transform",),
}
"""The options that apply to some agents only, by agent."""

WARPED = ("warp-rnn", "t-nets-rnn")
"""Agents with a φ, updated by Algorithm 3; the others have θ alone."""


def build_learner(name: str, maze: Maze, options: AgentOptions | None = None, device: str = "cpu") -> Learner:
    """Build the named agent in the maze, with newly drawn weights, split into θ and φ."""
    require(name in AGENTS, f"there is no agent '{name}'; choose one of {', '.join(AGENTS)}.")
    options = options or AgentOptions()
    own = {setting: getattr(options, setting) for setting in OPTIONS.get(name, ())}
    agent = AGENTS[name](FEATURES, options.hidden, len(MOVES), **own)
    module = MazeRollOut(agent, maze, taped=options.taped).to(device)
    return Learner(module) if name in WARPED else Learner(module, warp=())


def task_parameters(learner: Learner) -> int:
    """Return the size of θ, the number of values that task adaptation changes."""
    return sum(value.numel() for value in learner.theta0.values())


def warp_parameters(learner: Learner) -> int:
    """Return the size of φ."""
    return sum(value.numel() for value in learner.phi.values())

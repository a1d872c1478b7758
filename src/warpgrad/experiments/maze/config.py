"""The settings of the maze experiment (§4.3 c.1, App. I), and the paper's values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from warpgrad.experiments.base import (
    Bound,
    Config,
    Declaration,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Row,
    RunTable,
)

METHODS = (
    "warp-rnn", "rnn", "hyperrnn", "t-nets-rnn", "hebbian", "simple-modulation", "retroactive-modulation", "memoryless",
)  # fmt: skip


@dataclass(frozen=True)
class MazeConfig(Config):
    """Settings of the maze experiment; the defaults are the paper's, where it states them."""

    method: str = "warp-rnn"
    meta_steps: PositiveInt = 200_000
    """The number of updates of θ, each on one batch of episodes."""
    episodes: PositiveInt = 30
    """The number of episodes in each update."""
    warp_every: PositiveInt = 30
    """η, the number of updates of θ per update of φ."""
    lr: PositiveFloat = 1e-3
    """Adam's step size for θ; the authors of the plasticity paper used 1e-4."""
    meta_lr: PositiveFloat = 1e-3
    """Adam's step size for φ."""
    clip: PositiveFloat = 4.0
    """The bound on the norms of the gradients of θ and of φ; it is ours, not the paper's."""
    size: int = 11
    """The number of cells along each side of the maze."""
    length: int = 200
    """The number of time steps of an episode."""
    reward: float = 10.0
    """The reward for reaching the goal."""
    wall_penalty: float = 0.0
    """The penalty for walking into a wall."""
    discount: Annotated[NonNegativeFloat, Bound("it must be at most 1", most=1)] = 0.9
    """γ, the discount of rewards."""
    value: NonNegativeFloat = 0.1
    """The coefficient of the critic's loss."""
    entropy: NonNegativeFloat = 0.03
    """The coefficient of Σ π², which acts as an entropy bonus."""
    hidden: PositiveInt = 100
    """The number of units of the RNN."""
    context: PositiveInt = 100
    """The number of units of the meta-LSTM (warp-rnn, hyperrnn)."""
    gate_bias: Annotated[float, Bound("it must be finite, or None for gates without a bias")] | None = None
    """The initial value of a learned bias of the gates (warp-rnn, hyperrnn). The paper has no bias, so that gates start
    nearly closed."""
    transform: Literal["identity", "drawn"] = "identity"
    """The initial value of the projections (t-nets-rnn); the paper does not state it."""
    validate_every: PositiveInt = 100
    """The number of updates between two points of the learning curve."""
    validation_episodes: PositiveInt = 60
    """The number of episodes per point of the learning curve; they are never trained on, and always the same."""
    test_episodes: PositiveInt = 300
    """The number of held-out episodes of the final score."""


PRESETS: Mapping[str, MazeConfig] = MappingProxyType(
    {"paper": MazeConfig(), "small": MazeConfig(preset="small", meta_steps=20_000)}
)


PLASTIC = {
    "Hebbian": "hebbian",
    "Simple modulation": "simple-modulation",
    "Retroactive modulation": "retroactive-modulation",
}
PLASTIC_UPDATES = 10_000
"""Settings of the plastic agents at `small`: their traces, a matrix per episode, make an update several times as
expensive."""


def _row(label: str, method: str, paper: float | None = None, *, small: int = 1, **at: int) -> Row:
    return Row(label, {"method": method}, paper, {"small": small}, {"small": at})


STEADIER = {"lr": 3e-4, "clip": 0.5}
"""The settings with which the RNN of the table `maze-rnn` had the highest return on validation episodes at the end."""

ROWS = (
    _row("Warp-RNN", "warp-rnn", 160.0, small=4),
    # The strongest RNN comes first: the others are compared with it.
    Row("RNN, Adam 0.0003, clip 0.5", {"method": "rnn", **STEADIER}, None, {"small": 4}),
    _row("RNN", "rnn", small=4),
    _row("HyperRNN", "hyperrnn", small=4),
    _row("T-Nets-RNN", "t-nets-rnn"),
    *(_row(label, method, meta_steps=PLASTIC_UPDATES) for label, method in PLASTIC.items()),
    _row("Memoryless", "memoryless"),
)

GATES = tuple(
    Row(f"{name}, {words}", {"method": method, "gate_bias": bias})
    for name, method in (("Warp-RNN", "warp-rnn"), ("HyperRNN", "hyperrnn"))
    for words, bias in (("gates as printed", None), ("gates open", 1.0))
)

LEARNING = tuple(
    Row(f"RNN, {words}", {"method": "rnn", **settings})
    for words, settings in (
        ("Adam 0.001, clip 4", {}),
        ("Adam 0.001, clip 0.5", {"clip": 0.5}),
        ("Adam 0.0003, clip 0.5", STEADIER),
    )
)
"""How the baseline performs with settings other than the paper's step size and our clipping."""

TABLES = (
    RunTable("maze", "Return in the maze", "maze", ROWS, seeds=10),
    RunTable("maze-gates", "Return in the maze, by how far the gates are open at the start", "maze", GATES, seeds=4),
    RunTable("maze-rnn", "Return of the RNN, by step size and clipping", "maze", LEARNING, seeds=1, preset="small"),
)


DECLARATION = Declaration(
    name="maze",
    section="§4.3 (c.1), App. I",
    summary="find a hidden goal and return to it: reinforcement learning with a warped RNN",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
)

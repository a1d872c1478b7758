"""The declared tables of the maze experiment, with the paper's figure."""

from __future__ import annotations

from warpgrad.experiments.base import Row, Table

PLASTIC = {
    "Hebbian": "hebbian",
    "Simple modulation": "simple-modulation",
    "Retroactive modulation": "retroactive-modulation",
}
PLASTIC_UPDATES = 10_000
"""Of the plastic agents at `small`: their traces, a matrix for every episode, make an update several times as dear."""


def _row(label: str, method: str, paper: float | None = None, *, small: int = 1, **at: int) -> Row:
    return Row(label, {"method": method}, paper, {"small": small}, {"small": at})


STEADIER = {"lr": 3e-4, "clip": 0.5}
"""What the RNN of the table `maze-rnn` had the highest return on validation episodes with, in its last updates."""

ROWS = (
    _row("Warp-RNN", "warp-rnn", 160.0, small=4),
    # The strongest RNN comes first: it is what the others are held against.
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
"""How the baseline does under other settings than the paper's step size and our clipping."""

TABLES = (
    Table("maze", "Return in the maze", "maze", ROWS, seeds=10),
    Table("maze-gates", "Return in the maze, by how far the gates are open at the start", "maze", GATES, seeds=4),
    Table("maze-rnn", "Return of the RNN, by step size and clipping", "maze", LEARNING, seeds=1, preset="small"),
)

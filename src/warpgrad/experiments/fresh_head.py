"""The weights of a run on other tasks than it was meta-trained on, if need be with a head drawn afresh.

What was meta-learned for N classes and images of one size serves others too, but for the head: its shape follows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from warpgrad.engine.checkpoint import load
from warpgrad.engine.files import read_json
from warpgrad.engine.state import Weights, load_weights, weights
from warpgrad.errors import WarpgradError
from warpgrad.method import Method

HEAD = "head"


def trained(make: Callable[[bool], Method], checkpoint: Path, *, adapts_head: bool = True) -> tuple[Method, list[str]]:
    """The method of a run with its best weights, and the names of what does not fit these settings and begins anew.

    Only the head may: it is then drawn afresh on every task, and what a rule or T knew of it begins at its start value.

    Args:
        make: The method for these settings, at its start; its argument says whether the head is to be a fresh one.
        checkpoint: Of the run.
        adapts_head: Whether adaptation would train a fresh head; where it would not, one is refused.
    """
    method = make(False)
    state = load(checkpoint, method.learner.device)
    stored: Weights = state["best"] or state["weights"]
    anew = _misfits(weights(method), stored)
    if anew:
        if not adapts_head:
            raise WarpgradError(
                f"this method does not adapt its head, so the head of {checkpoint} must fit: evaluate with the ways "
                "and the image size of meta-training."
            )
        method = make(True)
        own = weights(method)
        stored = {
            group: {name: own[group][name] if name in anew else value for name, value in entries.items()}
            for group, entries in stored.items()
        }
    load_weights(method, stored, checkpoint)
    return method, anew


def other_data(data: str, name: str, run: Path) -> list[str]:
    """What the output says where a run is tested on other `data`, called `name`, than it was meta-trained on."""
    before = read_json(run / "config.json")["data"]
    if data == before:
        return []
    return [f"Images are normalised by the training classes of {name}, not by those of {before}."]


def note(anew: Sequence[str]) -> list[str]:
    """What the output says of it."""
    if not anew:
        return []
    return [
        "The head of meta-training does not fit and is drawn afresh on every task; what begins anew: "
        f"{', '.join(dict.fromkeys(anew))}."
    ]


def _misfits(own: Weights, stored: Weights) -> list[str]:
    """The parts of the head that have another shape; with them the whole head, which begins anew as one."""
    heads = {
        group: [name for name in entries if name.split(".")[0] == HEAD and name in stored[group]]
        for group, entries in own.items()
    }
    other = [
        name for group, names in heads.items() for name in names if stored[group][name].shape != own[group][name].shape
    ]
    return sorted({*other, *heads["module"]}) if other else []

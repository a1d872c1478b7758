"""Scoring that the image experiments share: during meta-training, and of a finished run on held-out tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from warpgrad.algorithms.method import Method, Weights, load_weights, weights
from warpgrad.errors import require
from warpgrad.experiments.methods import HEAD
from warpgrad.io import read_json
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.loop import Validation


class ScoredConfig(Protocol):
    """The settings of an experiment that say how often a run is scored during meta-training."""

    @property
    def meta_steps(self) -> int: ...
    @property
    def validate_every(self) -> int: ...
    @property
    def patience(self) -> int | None: ...
    @property
    def test_curve_every(self) -> int: ...


def scoring(config: ScoredConfig, metric: str, validate: Validation, test: Validation) -> dict[str, Any]:
    """Return keyword arguments for `meta_train` that keep the weights with the largest `metric` of `validate`.

    `test` selects nothing; it is measured only if the settings ask for a curve.
    """
    return {
        "validate": validate,
        "validate_every": config.validate_every,
        "early_stopping": EarlyStopping(metric, config.patience or config.meta_steps, "max"),
        "test": test if config.test_curve_every else None,
        "test_every": config.test_curve_every or 1,
    }


@dataclass(frozen=True)
class AdaptationCurve:
    """The learning curve of adaptation to one held-out task."""

    tested_at: list[int]
    accuracy: list[float]
    """In per cent, on the test images, after that many steps."""
    loss: list[float]

    def until(self, steps: int) -> AdaptationCurve:
        """Return the curve up to `steps`, which must be one of the steps in `tested_at`."""
        end = self.tested_at.index(steps) + 1
        return AdaptationCurve(self.tested_at[:end], self.accuracy[:end], self.loss[:end])

    @property
    def area(self) -> float:
        """The mean height of the accuracy curve, by the trapezoid rule: AUC."""
        steps, heights = torch.tensor(self.tested_at).double(), torch.tensor(self.accuracy).double()
        return float(torch.trapezoid(heights, steps) / (steps[-1] - steps[0]))


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def print_notes(notes: Sequence[str]) -> list[str]:
    """Print the notes to stderr and return them as a list."""
    for line in notes:
        print(line, file=sys.stderr, flush=True)
    return list(notes)


def trained_method(
    make: Callable[[bool], Method], checkpoint: Path, *, adapts_head: bool = True
) -> tuple[Method, list[str]]:
    """Return the method of a run with its best weights, and the names of parameters that do not fit and are reset.

    Only the head may be reset: it is then drawn on every task, and its entries in a rule or T return to initial values.

    Args:
        make: The method for these settings, at its start; its argument says whether the head is to be a fresh one.
        checkpoint: The checkpoint of the run.
        adapts_head: Whether adaptation would train a fresh head; where it would not, one is refused.
    """
    method = make(False)
    state = read_checkpoint(checkpoint, method.learner.device)
    stored: Weights = state["best"] or state["weights"]
    anew = _misfits(weights(method), stored)
    if anew:
        require(
            adapts_head,
            f"this method does not adapt its head, so the head of {checkpoint} must fit: evaluate with the ways "
            "and the image size of meta-training.",
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
    """Return a note for the output if `data`, called `name`, differs from the data the run was meta-trained on."""
    before = read_json(run / "config.json")["data"]
    if data == before:
        return []
    return [f"Images are normalised by the training classes of {name}, not by those of {before}."]


def note(anew: Sequence[str]) -> list[str]:
    """Return a note for the output on the parameters that were reset, if any."""
    if not anew:
        return []
    return [
        "The head of meta-training does not fit, so it is re-initialised on every task; these parameters start anew: "
        f"{', '.join(dict.fromkeys(anew))}."
    ]


def _misfits(own: Weights, stored: Weights) -> list[str]:
    """Return the parameters of the head if any of them has another shape, since the whole head is then reset."""
    heads = {
        group: [name for name in entries if name.split(".")[0] == HEAD and name in stored[group]]
        for group, entries in own.items()
    }
    other = [
        name for group, names in heads.items() for name in names if stored[group][name].shape != own[group][name].shape
    ]
    return sorted({*other, *heads["module"]}) if other else []

"""Evaluation of a trained agent on held-out episodes: with memory, without it, and against policies that have none."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from warpgrad.maze import MazeRollOut, random_moves, returns_of, task_parameters, wandering, warp_parameters
from warpgrad.model.learner import Learner


def mean_return(learner: Learner, seeds: Tensor) -> float:
    with torch.no_grad():
        return float(learner.module(seeds).returns.mean())


def evaluated(learner: Learner, seeds: Tensor) -> dict[str, Any]:
    """Return metrics, the return of every episode, and the first episode step by step.

    `forgetting` resets the hidden state before every step; the return that this loses is due to memory.
    """
    roll_out = cast(MazeRollOut, learner.module)
    with torch.no_grad():
        episodes, mazes, places = roll_out.walk(seeds)
        forgetting = roll_out(seeds, forget=True).returns.cpu().numpy()
    returns = {
        "agent": episodes.returns.cpu().numpy(),
        "forgetting": forgetting,
        "wandering": returns_of(wandering, roll_out.maze, seeds),
        "random": returns_of(random_moves, roll_out.maze, seeds),
    }
    found = mazes.rewards > 0
    first, later = search_times(found)
    return {
        "metrics": {
            "return": float(returns["agent"].mean()),
            **{f"return/{name}": float(values.mean()) for name, values in returns.items() if name != "agent"},
            "steps/first_find": float(first.mean()),
            **({"steps/later_finds": float(later.mean())} if len(later) else {}),
            "episodes_without_find": int((~found.any(axis=0)).sum()),
            "parameters/task": task_parameters(learner),
            "parameters/warp": warp_parameters(learner),
        },
        "returns": {name: values.astype(float).tolist() for name, values in returns.items()},
        "film": {
            "goal": int(mazes.goals[0]),
            "places": places[:, 0].tolist(),
            "found": np.flatnonzero(found[:, 0]).tolist(),
        },
    }


def search_times(found: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the steps up to the first find of each episode, and between later ones, from flags [steps, episodes].

    An episode without a find counts with all its steps; otherwise agents that rarely find the goal would seem fast.
    """
    first, later = [], []
    for own in found.T:
        times = np.flatnonzero(own) + 1
        first.append(times[0] if len(times) else len(own))
        later.append(np.diff(times))
    return np.array(first), np.concatenate(later)

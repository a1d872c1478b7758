"""Every declared row with a warp learns its warp: a row that could not move it would compare frozen random layers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.support.omniglot_runs import EXPERIMENT
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.data import Alphabets, prepare_drawn
from warpgrad.data.tasks.alphabets import alphabet_tasks
from warpgrad.experiments.omniglot.config import OmniglotConfig
from warpgrad.experiments.omniglot.methods import open_data, recipe, starting_drawings
from warpgrad.experiments.reproduction import cells
from warpgrad.keys import fold
from warpgrad.tensors import Tensors

FIRST = 12
"""Meta-steps within which φ has to move; most rows need one, the online one and the non-linear warp of App. G six."""
LEAST = 0.01
"""Of its norm."""
SIZES = {"tasks": 3, "held_out": 1}
"""Fewer alphabets to draw; all else is the preset's: filters, step sizes, steps, tasks per meta-step, share, clips."""
BESIDE = {"preset": "small", "data": None, "split": "test", "validate_every": 0, "validation_tasks": 1, "meta_steps": 1}
"""What has no influence on the first meta-steps: rows that differ in nothing else are tried once."""


def rows() -> dict[str, OmniglotConfig]:
    """Table and label -> settings at preset small."""
    found: dict[OmniglotConfig, str] = {}
    for table in EXPERIMENT.tables:
        for cell in cells(EXPERIMENT, table, Path(), "small", 1):
            if cell.config.method == "warp-leap" and cell.config.meta_schedule == "constant":
                found.setdefault(dataclasses.replace(cell.config, **SIZES, **BESIDE), f"{table.name}: {cell.row.label}")
    return {label: config for config, label in found.items()}


ROWS = rows()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("rows") / "drawn"
    prepare_drawn(path, alphabets=4, characters=(20, 22), drawers=20)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("label", ROWS)
def test_phi_of_every_declared_warp_row_moves_in_its_first_meta_steps(label, folder):
    moved, alpha = first_meta_steps(dataclasses.replace(ROWS[label], data=folder))
    assert moved > LEAST, f"φ moved by {100 * moved:.2f} % of its norm"
    if "free to move" in label:
        assert abs(alpha - 0.1) > LEAST * 0.1, alpha
    elif "learned α" in label:
        # The printed clip and step size: 1e-6 an update, a row that stands beside the other for the comparison.
        assert 0 < abs(alpha - 0.1) < LEAST * 0.1, alpha


def first_meta_steps(config: OmniglotConfig) -> tuple[float, float]:
    """How far φ moved, relative to its norm, and α; after the first meta-steps, or as soon as φ has moved enough."""
    alphabets = Alphabets(open_data(config.data), config.seed, config.protocol)
    tasks = alphabet_tasks(
        alphabets, alphabets.split(config.tasks).train, batch_size=config.batch_size, meta_drawings=config.meta_drawings
    )
    chosen = recipe(config, starting_drawings(config, alphabets))
    update = MetaOptimiser(chosen.method, chosen.optimiser, clip=chosen.clip)
    phi = chosen.method.learner.phi
    begun = {name: value.detach().clone() for name, value in phi.items()}
    moved = 0.0
    for step in range(FIRST):
        key = fold(config.seed, step)
        batch = tasks.meta_batch(key, config.meta_batch)
        chosen.algorithm.meta_step(chosen.method, batch, [fold(key, place) for place in range(len(batch))], update)
        moved = norm({name: value.detach() - begun[name] for name, value in phi.items()}) / norm(gains(begun))
        if moved > LEAST:
            break
    alpha = chosen.method.rule.meta.get("lr")
    return moved, config.inner_lr if alpha is None else float(alpha.detach())


def gains(phi: Tensors) -> Tensors:
    """φ, with the scales of channel-wise scaling as the factors that they are: 1 + scale."""
    return {name: value + 1 if name.endswith("scale") else value for name, value in phi.items()}


def norm(tensors: Tensors) -> float:
    return float(torch.nn.utils.get_total_norm(list(tensors.values())))

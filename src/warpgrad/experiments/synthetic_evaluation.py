"""Descents on held-out surfaces, with and without the warp; the columns are those of `synthetic.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from warpgrad.batched import BatchedAdaptation
from warpgrad.experiments.minima import minima, reached
from warpgrad.experiments.synthetic_setup import SyntheticConfig
from warpgrad.geometry import invert, jacobian
from warpgrad.keys import fold, generator
from warpgrad.learner import Learner
from warpgrad.rules import SGD, Adam, Rule
from warpgrad.tasks.surfaces import EDGE, Position, SurfaceTask, draw_coefficients

TUNED_LR = 0.08
"""Step size of one more gradient descent, the control for a geometry that only shortens steps: the best of 0.05, 0.06,
0.07, 0.08 and 0.1 on the validation surfaces of four seeds."""


@dataclass(frozen=True)
class Descent:
    """Many descents at once: heights [K+1, n] and θ's [K+1, n, 2]; the place on the surface is Ω(θ)."""

    heights: Tensor
    thetas: Tensor


def descend(omega: nn.Module | None, rule: Rule, starts: Tensor, coefficients: Tensor, steps: int) -> Descent:
    """K steps from every start [n, 2] on its own surface [n, 8], through Ω where one is given."""
    learner = Learner(Position(omega).to(starts.device), warp=() if omega is None else "omega")
    tasks = [SurfaceTask(own) for own in coefficients]
    adaptation = BatchedAdaptation(learner, rule, tasks, range(len(tasks)))
    point = adaptation.start([{"theta": start} for start in starts])
    heights, thetas = [], []
    for _ in range(steps):
        transition = adaptation.step(point)
        heights.append(transition.loss)
        thetas.append(point.theta["theta"])
        point = transition.after
    thetas.append(point.theta["theta"])
    heights.append(adaptation.task_loss(point.theta, point.buffers, steps)[0].detach())
    return Descent(torch.stack(heights), torch.stack(thetas))


class Test:
    """The held-out surfaces and starts of one meta-seed, and how every column does on them."""

    __test__ = False  # not a test case, whatever pytest thinks of the name

    def __init__(self, config: SyntheticConfig, learner: Learner) -> None:
        self.config = config
        omega = learner.module.get_submodule("omega").requires_grad_(False)
        self.omega = omega
        keys = [fold(config.seed, config.split, place) for place in range(config.test_surfaces)]
        self.surfaces = torch.stack([draw_coefficients(key, config.form) for key in keys]).to(config.device)
        draw = generator(config.seed, config.split, "starts")
        shape = (config.test_surfaces * config.test_starts, 2)
        self.x0 = ((2 * torch.rand(shape, generator=draw) - 1) * EDGE).to(config.device)
        self.coefficients = self.surfaces.repeat_interleave(config.test_starts, dim=0)

    def descents(self) -> tuple[dict[str, Descent], Tensor]:
        """Every column, and which starts Newton's method could match."""
        config = self.config
        matched = invert(self.omega, self.x0, self.x0)
        plain = partial(descend, coefficients=self.coefficients, steps=config.steps)
        rule = SGD(config.lr)
        with torch.no_grad():
            shifted = self.omega(self.x0)
        return {
            "gd": plain(None, rule, self.x0),
            "gd_tuned": plain(None, SGD(TUNED_LR), self.x0),
            "warp_matched": plain(self.omega, rule, matched.theta),
            "warp": plain(self.omega, rule, self.x0),
            "gd_shifted": plain(None, rule, shifted),
            "momentum": plain(None, SGD(config.lr, momentum=0.9), self.x0),
            "adam": plain(None, Adam(config.lr), self.x0),
        }, matched.converged

    def place(self, column: str, thetas: Tensor) -> Tensor:
        """Where on the surface θ stands: through Ω in the columns that descend through it."""
        return self.omega(thetas) if column in ("warp", "warp_matched") else thetas

    def result(self) -> dict[str, Any]:
        config = self.config
        columns, converged = self.descents()
        found = minima(self.surfaces.cpu())
        with_minimum = [place for place, points in enumerate(found) if len(points)]
        shape = (config.test_surfaces, config.test_starts)
        final = {name: column.heights[-1].reshape(shape) for name, column in columns.items()}
        with torch.no_grad():
            moved = (self.omega(self.x0) - self.x0).norm(dim=1).mean()
            determinants = torch.linalg.det(torch.vmap(partial(jacobian, self.omega))(self.x0))
            success = {}
            for name, column in columns.items():
                ends = self.place(name, column.thetas[-1]).cpu().reshape(*shape, 2)
                success[name] = [reached(ends[place], found[place]).float().mean().item() for place in with_minimum]
        return {
            "metrics": {
                **{f"loss/{name}": float(value.mean()) for name, value in final.items()},
                **{f"reached/{name}": float(torch.tensor(value).mean()) for name, value in success.items()},
                "unmatched_starts": int((~converged).sum()),
                "coverage": float(converged.float().mean()),
                "mean_shift": float(moved),
                "orientation_kept": float((determinants > 0).float().mean()),
            },
            "final": {name: value.tolist() for name, value in final.items()},
            "matched": converged.reshape(shape).tolist(),
            "reached": success,
            "with_minimum": len(with_minimum),
            "curves": {name: column.heights.mean(dim=1).tolist() for name, column in columns.items()},
        }

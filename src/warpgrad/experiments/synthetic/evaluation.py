"""Descents on held-out surfaces, with and without the warp; one column for each way to descend.

The evaluation has all that tables, figures and pages need, so that none of them needs the run itself: means over the
starts of every surface, Ω's weights, and a few surfaces to draw, chosen before any result is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.analysis import invert, jacobian
from warpgrad.experiments.synthetic.config import InnerRule, SyntheticConfig, descending_at_test, tuned_lr
from warpgrad.experiments.synthetic.methods import omega_values, rule, rule_at_test
from warpgrad.experiments.synthetic.surfaces import EDGE, Position, SurfaceTask, draw_coefficients, met, minima, reached
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule

WARPED = ("warp_matched", "warp")
"""The columns whose descents go through Ω."""
FROM_X0 = ("plain", "sgd_tuned", "momentum_tuned", "adam_tuned", "warp_matched")
"""The columns that begin at x0 on the surface: compared over the starts that could be matched."""
MEASURED = ("plain", "plain_shifted", *WARPED)
"""The columns along which curvature is measured."""
EXAMPLES = 6
"""Surfaces to draw: the first ones that have a minimum, with all their starts."""


@dataclass(frozen=True)
class Descent:
    """Many descents at once: heights [K+1, n] and θ's [K+1, n, 2]; the place on the surface is Ω(θ)."""

    heights: Tensor
    thetas: Tensor


def descend_surfaces(omega: nn.Module | None, rule: Rule, starts: Tensor, coefficients: Tensor, steps: int) -> Descent:
    """Take K steps from every start [n, 2] on its surface [n, 8], through Ω if one is given."""
    learner = Learner(Position(omega).to(starts.device), warp=())  # Ω is frozen: it learns nothing here
    tasks = [SurfaceTask(own) for own in coefficients]
    adaptation = BatchedAdaptation(learner, rule, tasks, range(len(tasks)))
    trajectory = Trajectory(adaptation, steps, start=adaptation.start([{"theta": start} for start in starts]))
    heights, thetas = [], []
    for segment in trajectory:
        heights.append(segment.loss)
        thetas.append(segment.point.theta["theta"])
    point = trajectory.point
    thetas.append(point.theta["theta"])
    heights.append(adaptation.task_loss(point.theta, point.buffers, steps)[0].detach())
    return Descent(torch.stack(heights), torch.stack(thetas))


class Test:
    """The held-out surfaces and starts of one meta-seed, and the descents of every column on them."""

    __test__ = False  # or pytest would take the class for a test case

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config
        self.shape = (config.test_surfaces, config.test_starts)
        keys = [fold(config.seed, config.split, place) for place in range(config.test_surfaces)]
        self.surfaces = torch.stack([draw_coefficients(key, config.form) for key in keys]).to(config.device)
        draw = generator(config.seed, config.split, "starts")
        starts = torch.rand((config.test_surfaces * config.test_starts, 2), generator=draw)
        self.x0 = ((2 * starts - 1) * EDGE).to(config.device)
        self.coefficients = self.surfaces.repeat_interleave(config.test_starts, dim=0)
        self.found = minima(self.surfaces.cpu())
        self.with_minimum = [place for place, points in enumerate(self.found) if len(points)]

    def without_warp(self) -> dict[str, Descent]:
        """Return the descents of the rule without a warp."""
        return {"plain": self._descend(None, rule_at_test(self.config), self.x0)}

    def columns(self, omega: nn.Module) -> tuple[dict[str, Descent], Tensor]:
        """Return the descents of every column, and which starts Newton's method could match."""
        config = self.config
        matched = invert(omega, self.x0, self.x0)
        inner = rule_at_test(config)
        best = {name: rule(config, name, tuned_lr(config, name)) for name in get_args(InnerRule)}
        with torch.no_grad():
            shifted = omega(self.x0)
        return {
            **self.without_warp(),
            "warp_matched": self._descend(omega, inner, matched.theta),
            "plain_shifted": self._descend(None, inner, shifted),
            "warp": self._descend(omega, inner, self.x0),
            "tuned_shifted": self._descend(None, best[descending_at_test(config)[0]], shifted),
            **{f"{name}_tuned": self._descend(None, own, self.x0) for name, own in best.items()},
        }, matched.converged

    def result(self, omega: nn.Module | None) -> dict[str, Any]:
        """Return the content of evaluation.json; without Ω, only that of the plain rule."""
        if omega is None:
            return self._results(self.without_warp(), None)
        omega = omega.requires_grad_(False)
        columns, converged = self.columns(omega)
        found = self._results(columns, omega)
        with torch.no_grad():
            moved = (omega(self.x0) - self.x0).norm(dim=1).mean()
            determinants = torch.linalg.det(torch.vmap(partial(jacobian, omega))(self.x0))
        found["metrics"] |= {
            "unmatched_starts": int((~converged).sum()),
            "coverage": float(converged.float().mean()),
            "mean_shift": float(moved),
            "orientation_kept": float((determinants > 0).float().mean()),
        }
        curvature = {name: self._curvature(name, columns[name], omega, converged) for name in MEASURED}
        found["metrics"] |= {
            f"curvature/{name}/{space}": _mean(values)
            for name, own in curvature.items()
            for space, values in own.items()
        }
        return {
            **found,
            "matched": {
                "counts": converged.reshape(self.shape).sum(dim=1).tolist(),
                "final": {name: self._matched(columns[name].heights[-1], converged) for name in FROM_X0},
            },
            "curvature": curvature,
            "omega": omega_values(omega),
            "examples": self._examples(columns),
        }

    def _descend(self, omega: nn.Module | None, rule: Rule, starts: Tensor) -> Descent:
        return descend_surfaces(omega, rule, starts, self.coefficients, self.config.steps)

    def _results(self, columns: Mapping[str, Descent], omega: nn.Module | None) -> dict[str, Any]:
        final = {name: column.heights[-1] for name, column in columns.items()}
        success = {}
        for name, column in columns.items():
            ends = column.thetas[-1]
            if omega is not None and name in WARPED:
                with torch.no_grad():
                    ends = omega(ends)
            places = ends.cpu().reshape(*self.shape, 2)
            success[name] = [
                reached(places[place], self.found[place]).double().mean().item() for place in self.with_minimum
            ]
        return {
            "metrics": {
                **{f"loss/{name}": float(value.mean()) for name, value in final.items()},
                **{f"reached/{name}": float(torch.tensor(value).mean()) for name, value in success.items()},
            },
            "final": {name: self._means(value) for name, value in final.items()},
            "reached": success,
            "with_minimum": len(self.with_minimum),
            "curves": {name: column.heights.mean(dim=1).tolist() for name, column in columns.items()},
        }

    def _curvature(
        self, name: str, column: Descent, omega: nn.Module, converged: Tensor
    ) -> dict[str, list[float | None]]:
        """Return space -> largest curvature met, per surface; over matched starts in the columns that begin at x0.

        A plain descent has the space of x alone.
        """
        own = met(omega if name in WARPED else None, column.thetas, self.coefficients)
        spaces = {"x": own.x} if name not in WARPED else vars(own)
        kept = converged if name in FROM_X0 else torch.ones_like(converged)
        return {space: self._matched(values, kept) for space, values in spaces.items()}

    def _means(self, values: Tensor) -> list[float]:
        """Return the mean over starts for each surface."""
        means: list[float] = values.double().reshape(self.shape).mean(dim=1).tolist()
        return means

    def _matched(self, values: Tensor, converged: Tensor) -> list[float | None]:
        """Return the mean over the starts that could be matched for each surface, or None where none could."""
        pairs = zip(values.double().reshape(self.shape), converged.reshape(self.shape), strict=True)
        return [float(own[kept].mean()) if kept.any() else None for own, kept in pairs]

    def _examples(self, columns: Mapping[str, Descent]) -> list[dict[str, Any]]:
        """Return the first surfaces that have a minimum, without selection, with their starts and final heights."""
        starts = self.x0.reshape(*self.shape, 2)
        ends = {name: column.heights[-1].reshape(self.shape) for name, column in columns.items()}
        return [
            {
                "surface": place,
                "coefficients": self.surfaces[place].tolist(),
                "starts": starts[place].tolist(),
                "final": {name: own[place].tolist() for name, own in ends.items()},
            }
            for place in self.with_minimum[:EXAMPLES]
        ]


def _mean(values: Sequence[float | None]) -> float:
    """Return the mean of the values that are not None, or NaN if there are none."""
    return float(torch.tensor([value for value in values if value is not None]).mean())

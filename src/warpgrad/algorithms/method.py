"""A method is a choice of parts: learner, rule, objective, initialiser and λ. What it has learned are its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.trajectory import ObjectiveStep, ThetaGradient, Trajectory
from warpgrad.algorithms.ranks import Ranks, all_reduce
from warpgrad.errors import NonFiniteError, WarpgradError, expect, real, require, understood
from warpgrad.initialisers import Fixed, Initialiser
from warpgrad.model.learner import Learner
from warpgrad.objectives import Objective, StartSample, UnrolledStep
from warpgrad.rules import Rule
from warpgrad.tensors import Accumulator, Tensors

ParameterGroup = Literal["phi", "rule", "theta0", "prior"]
"""What is meta-learned: φ, the rule's own parameters, θ0, and the spread of a prior over θ0."""
GROUPS: tuple[ParameterGroup, ...] = ("phi", "rule", "theta0", "prior")

Reduction = Literal["mean", "sum"]
Weights = dict[str, Tensors]
"""What a method has learned, by the part that holds it: the module, the rule, the prior."""


class MetaUpdate(Protocol):
    """Applies a gradient to a group of meta-parameters, as a `MetaOptimiser` does."""

    def __call__(self, group: ParameterGroup, gradient: Tensors) -> None: ...


@dataclass
class Method:
    """J(φ, θ0) = L(φ) + λ C(θ0), Eq. 13, with the rule that adapts.

    It is built once and passed to `meta_train`. `warpgrad.algorithms.recipes` has the methods that the paper names.

    Example:
        >>> method = wg.Method(learner, wg.SGD(0.1), wg.Exact(), wg.Leap(), weight=0.5)
        >>> records = wg.meta_train(
        ...     method, family, algorithm=wg.Online(steps=3, tasks=2), optimiser=adam, meta_steps=1)
    """

    learner: Learner
    rule: Rule
    objective: Objective | None = None
    """L; None where only the initialisation is learned."""
    initialiser: Initialiser = field(default_factory=Fixed)
    """C."""
    weight: float = 1.0
    """λ."""

    def __post_init__(self) -> None:
        expect(self.learner, Learner, "learner", "Learner(model, warp=...)")
        expect(self.rule, Rule, "rule", "SGD(0.1)")
        expect(self.initialiser, Initialiser, "initialiser", "Leap()")
        self.weight = real(self.weight, "weight", at_least=0)
        if self.objective is not None:
            expect(self.objective, Objective, "objective", "Exact()")
            self.objective.check(self.learner, self.rule)
        self.rule.prepare(self.learner.theta0)
        self.initialiser.prepare(self.learner)

    @classmethod
    def of(
        cls,
        given: Method | Learner,
        rule: Rule | None = None,
        objective: Objective | None = None,
        initialiser: Initialiser | None = None,
        weight: float | None = None,
    ) -> Method:
        """Return the method that was given, or build one from a learner and the other parts."""
        parts = {"rule": rule, "objective": objective, "initialiser": initialiser, "weight": weight}
        named = [name for name, part in parts.items() if part is not None]
        if isinstance(given, Method):
            if named:
                raise WarpgradError(f"a Method already has its parts: set {named[0]}= in Method(...) instead.")
            return given
        if rule is None:
            raise WarpgradError("a learner needs rule=, its update rule: pass rule=SGD(...), or a Method(...) instead.")
        return cls(given, rule, objective, initialiser or Fixed(), 1.0 if weight is None else weight)

    def parameters(self, group: ParameterGroup) -> Tensors:
        """Return the meta-parameters of a group; empty if the method has none."""
        return {
            "phi": self.learner.phi,
            "rule": self.rule.meta,
            "theta0": self.learner.learned_theta0,
            "prior": self.initialiser.meta,
        }[group]

    def trajectory(self, adaptation: Adaptation, steps: int) -> Trajectory:
        """Return K adaptation steps, each with its contributions to L and C."""
        return Trajectory(adaptation, steps, objective=self.objective, initialiser=self.initialiser)


def weights(method: Method) -> Weights:
    """Return everything that is meta-learned: the module (θ0, φ, buffers), the rule's parameters and the prior's."""
    module = method.learner.module
    return {
        "module": {**dict(module.named_parameters()), **dict(module.named_buffers())},
        "rule": dict(method.rule.meta),
        "prior": dict(method.initialiser.meta),
    }


def load_weights(method: Method, state: Mapping[str, Any], source: Path | None = None) -> None:
    """Copy stored weights into a method; names, shapes and kinds of numbers must match."""
    targets = weights(method)
    with understood(source):
        _check_weights(targets, state, f"checkpoint {source}" if source is not None else "the checkpoint")
        with torch.no_grad():
            for group, own in targets.items():
                for name, value in own.items():
                    value.copy_(state[group][name])


def _check_weights(targets: Weights, state: Mapping[str, Any], where: str) -> None:
    for group, own in targets.items():
        given = state.get(group) or {}
        for name in sorted(set(own) ^ set(given)):
            side = "has no" if name in own else "has an unknown"
            raise WarpgradError(f"{where} {side} {group} entry '{name}': it belongs to another model or method.")
        for name, value in own.items():
            require(
                value.shape == given[name].shape,
                f"{where} has {group} entry '{name}' of shape {tuple(given[name].shape)}, but the model "
                f"has {tuple(value.shape)}: it belongs to another model.",
            )
            # Weights may be loaded in another precision, but never as another kind of number.
            require(
                torch.can_cast(given[name].dtype, value.dtype)
                and given[name].is_floating_point() == value.is_floating_point(),
                f"{where} has {group} entry '{name}' in {given[name].dtype}, but the model has {value.dtype}: it "
                "belongs to another model.",
            )
            if not _is_sound(given[name], parameter=isinstance(value, torch.nn.Parameter) or group != "module"):
                raise NonFiniteError(
                    f"{where} has {group} entry '{name}' with NaN or infinite values: training had "
                    "diverged; lower the step sizes and start over with --fresh."
                )


def _is_sound(value: torch.Tensor, *, parameter: bool) -> bool:
    """Return whether stored values can be used: no NaN, and nothing infinite except in a buffer, such as a mask."""
    if not (value.is_floating_point() or value.is_complex()):
        return True
    return bool((value.isfinite() if parameter else ~value.isnan()).all())


class MetaGradient:
    """g_φ and g_θ0, accumulated along trajectories in constant memory."""

    def __init__(self) -> None:
        self._sums: dict[ParameterGroup, Accumulator] = {group: Accumulator() for group in GROUPS}

    @property
    def samples(self) -> int:
        """How many (task, step) samples are in g_φ."""
        return self._sums["phi"].count

    def add_sample(self, sample: ObjectiveStep | UnrolledStep | StartSample | None, count: int) -> None:
        """Add ∇L(φ; θ_k) to g_φ, for `count` stacked tasks."""
        if sample is not None:
            self._sums["phi"].add(sample.phi, count)
            self._sums["rule"].add(sample.rule, count)

    def add_start(self, gradient: ThetaGradient | None, adaptation: Adaptation) -> None:
        """Add ∇C(θ0; θ_{0:k}) to g_θ0."""
        if gradient is not None:
            self._sums["theta0"].add(adaptation.total(gradient.theta0), adaptation.size)
            self._sums["prior"].add(adaptation.total(gradient.prior), adaptation.size)

    def all_reduce(self, ranks: Ranks, method: Method, *groups: ParameterGroup) -> None:
        """Sum these groups over all ranks; to be called once, before they are applied."""
        all_reduce(ranks, [(self._sums[group], method.parameters(group)) for group in groups])

    def apply(self, update: MetaUpdate, *groups: ParameterGroup, scale: float) -> None:
        """Pass the sums, times `scale`, to the meta-optimiser, and reset them."""
        for group in groups:
            accumulator = self._sums[group]
            if accumulator.total:
                update(group, accumulator.scaled(scale))
            accumulator.clear()

    def state(self) -> Tensors:
        """Return the sums, for a checkpoint of an algorithm that carries them over meta-steps."""
        return {
            f"{group}/{name}": value
            for group, accumulator in self._sums.items()
            for name, value in accumulator.total.items()
        }

    def load_state(self, state: Tensors, samples: int) -> None:
        for accumulator in self._sums.values():
            accumulator.clear()
        for path, value in state.items():
            group, _, name = path.partition("/")
            self._sums[group].total[name] = value.clone()  # type: ignore[index]
        self._sums["phi"].count = self._sums["rule"].count = samples

"""A method is a choice of parts: learner, rule, objective, initialiser, and λ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.trajectory import ObjectiveStep, ThetaGradient, Trajectory
from warpgrad.algorithms.ranks import Ranks, all_reduce
from warpgrad.errors import WarpgradError, expect, real
from warpgrad.initialisers.base import Initialiser
from warpgrad.initialisers.points import Fixed
from warpgrad.model.learner import Learner
from warpgrad.objectives.base import Objective, StartSample
from warpgrad.objectives.unrolled import UnrolledStep
from warpgrad.rules.base import Rule
from warpgrad.tensors import Accumulator, Tensors

ParameterGroup = Literal["phi", "rule", "theta0", "prior"]
"""What is meta-learned: φ, the rule's own parameters, θ0, and the spread of a prior over θ0."""
GROUPS: tuple[ParameterGroup, ...] = ("phi", "rule", "theta0", "prior")

Reduction = Literal["mean", "sum"]


class MetaUpdate(Protocol):
    """Applies a gradient to a group of meta-parameters; a meta-optimiser, whatever else it does."""

    def __call__(self, group: ParameterGroup, gradient: Tensors) -> None: ...


@dataclass
class Method:
    """J(φ, θ0) = L(φ) + λ C(θ0), Eq. 13, with the rule that adapts.

    It is built once and handed to `meta_train`; `warpgrad.algorithms.recipes` names some that the paper does.

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
        """A method that was given whole, or as a learner with the other parts."""
        parts = {"rule": rule, "objective": objective, "initialiser": initialiser, "weight": weight}
        named = [name for name, part in parts.items() if part is not None]
        if isinstance(given, Method):
            if named:
                raise WarpgradError(f"the method has a part of its own for {named[0]}=: build it into Method(...).")
            return given
        if rule is None:
            raise WarpgradError("a learner needs rule=, how it is adapted: pass rule=SGD(...), or a whole Method(...).")
        return cls(given, rule, objective, initialiser or Fixed(), 1.0 if weight is None else weight)

    def parameters(self, group: ParameterGroup) -> Tensors:
        """The meta-parameters of a group; empty where the method has none."""
        return {
            "phi": self.learner.phi,
            "rule": self.rule.meta,
            "theta0": self.learner.learned_theta0,
            "prior": self.initialiser.meta,
        }[group]

    def trajectory(self, adaptation: Adaptation, steps: int) -> Trajectory:
        """K adaptation steps, each with what L and C make of it."""
        return Trajectory(adaptation, steps, objective=self.objective, initialiser=self.initialiser)


class MetaGradient:
    """g_φ and g_θ0 as they grow along trajectories, in constant memory."""

    def __init__(self) -> None:
        self._sums: dict[ParameterGroup, Accumulator] = {group: Accumulator() for group in GROUPS}

    @property
    def samples(self) -> int:
        """How many (task, step) samples are in g_φ."""
        return self._sums["phi"].count

    def add_sample(self, sample: ObjectiveStep | UnrolledStep | StartSample | None, count: int) -> None:
        """g_φ ← g_φ + ∇L(φ; θ_k), for `count` stacked tasks."""
        if sample is not None:
            self._sums["phi"].add(sample.phi, count)
            self._sums["rule"].add(sample.rule, count)

    def add_start(self, gradient: ThetaGradient | None, adaptation: Adaptation) -> None:
        """g_θ0 ← g_θ0 + ∇C(θ0; θ_{0:k})."""
        if gradient is not None:
            self._sums["theta0"].add(adaptation.total(gradient.theta0), adaptation.size)
            self._sums["prior"].add(adaptation.total(gradient.prior), adaptation.size)

    def all_reduce(self, ranks: Ranks, method: Method, *groups: ParameterGroup) -> None:
        """Make the sums of these groups those of all ranks; once, before they are applied."""
        all_reduce(ranks, [(self._sums[group], method.parameters(group)) for group in groups])

    def apply(self, update: MetaUpdate, *groups: ParameterGroup, scale: float) -> None:
        """Hand the sums, times `scale`, to the meta-optimiser and start over."""
        for group in groups:
            accumulator = self._sums[group]
            if accumulator.total:
                update(group, accumulator.scaled(scale))
            accumulator.clear()

    def state(self) -> Tensors:
        """The sums, for a checkpoint of an algorithm that carries them over meta-steps."""
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

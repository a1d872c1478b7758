"""Meta-objectives, Eqs. 1, 11, 12 and 18. To add one, subclass `Objective`: see `docs/extending.md`."""

from warpgrad.adaptation.trajectory import ObjectiveStep
from warpgrad.objectives.base import Objective, StartSample
from warpgrad.objectives.unrolled import UnrolledObjective, UnrolledStep
from warpgrad.objectives.warp import Approximate, Exact, InPlace

__all__ = [
    "Approximate", "Exact", "InPlace", "Objective", "ObjectiveStep", "StartSample", "UnrolledObjective", "UnrolledStep",
]  # fmt: skip

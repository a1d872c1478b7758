"""Meta-objectives, one file each. To add one, subclass `Objective`: see `docs/extending.md`."""

from warpgrad.objectives.approximate import Approximate
from warpgrad.objectives.base import Objective, ObjectiveStep
from warpgrad.objectives.exact import Exact
from warpgrad.objectives.in_place import InPlace
from warpgrad.objectives.unrolled import Through, UnrolledStep

__all__ = ["Approximate", "Exact", "InPlace", "Objective", "ObjectiveStep", "Through", "UnrolledStep"]

"""One task under adaptation, its trajectory, the stacked and the traced form of it, and `adapt`."""

from warpgrad.adaptation.adapt import LearningCurve, adapt, evaluate, score
from warpgrad.adaptation.base import Adaptation, Point, Transition
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import Segment, Trajectory

__all__ = [
    "Adaptation",
    "BatchedAdaptation",
    "LearningCurve",
    "Point",
    "Segment",
    "Trajectory",
    "Transition",
    "adapt",
    "evaluate",
    "score",
]

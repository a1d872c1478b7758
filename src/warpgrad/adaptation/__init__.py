"""Adaptation to a task: one step, its trajectory, stacked and traced evaluation, and `adapt`."""

from warpgrad.adaptation.adapt import LearningCurve, adapt, evaluate, score
from warpgrad.adaptation.base import ADAPT_BATCH, META_BATCH, Adaptation, Point, Role, Source, Transition
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import Segment, Trajectory

__all__ = [
    "ADAPT_BATCH",
    "META_BATCH",
    "Adaptation",
    "BatchedAdaptation",
    "LearningCurve",
    "Point",
    "Role",
    "Segment",
    "Source",
    "Trajectory",
    "Transition",
    "adapt",
    "evaluate",
    "score",
]

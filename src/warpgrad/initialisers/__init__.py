"""Initialisers, one file each. To add one, subclass `Initialiser`: see `docs/extending.md`."""

from warpgrad.initialisers.base import Initialiser, Start, ThetaGradient, Tracker
from warpgrad.initialisers.fixed import Fixed
from warpgrad.initialisers.gaussian import GaussianPrior
from warpgrad.initialisers.leap import Leap
from warpgrad.initialisers.maml import FOMAML, MAML
from warpgrad.initialisers.multi_task import MultiTask
from warpgrad.initialisers.reptile import Reptile

__all__ = [
    "FOMAML", "MAML", "Fixed", "GaussianPrior", "Initialiser", "Leap", "MultiTask", "Reptile", "Start",
    "ThetaGradient", "Tracker",
]  # fmt: skip

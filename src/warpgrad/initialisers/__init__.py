"""Initialisers, C(θ0) of Eq. 13. To add one, subclass `Initialiser`: see `docs/extending.md`."""

from warpgrad.adaptation.trajectory import Start, ThetaGradient
from warpgrad.initialisers.base import Initialiser
from warpgrad.initialisers.points import FOMAML, MAML, Fixed, Leap, MultiTask, Reptile
from warpgrad.initialisers.prior import GaussianPrior

__all__ = [
    "FOMAML", "MAML", "Fixed", "GaussianPrior", "Initialiser", "Leap", "MultiTask", "Reptile", "Start",
    "ThetaGradient",
]  # fmt: skip

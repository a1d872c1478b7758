"""Update rules, Eqs. 2-5. To add one, subclass `Rule`: see `docs/extending.md`."""

from warpgrad.rules.base import Learned, Rule
from warpgrad.rules.descent import SGD, Adam, Clip
from warpgrad.rules.learned import MaskedSGD, MetaCurvature, MetaSGD

__all__ = ["SGD", "Adam", "Clip", "Learned", "MaskedSGD", "MetaCurvature", "MetaSGD", "Rule"]

"""Update rules, one file each. To add one, subclass `Rule`: see `docs/extending.md`."""

from warpgrad.rules.adam import Adam
from warpgrad.rules.base import Learned, Rule
from warpgrad.rules.clip import Clip
from warpgrad.rules.meta_curvature import MetaCurvature
from warpgrad.rules.meta_sgd import MetaSGD
from warpgrad.rules.mt_nets import MaskedSGD
from warpgrad.rules.sgd import SGD

__all__ = ["SGD", "Adam", "Clip", "Learned", "MaskedSGD", "MetaCurvature", "MetaSGD", "Rule"]

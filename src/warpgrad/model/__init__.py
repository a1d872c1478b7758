"""Any `nn.Module` as a pure function of θ, φ and buffers."""

from warpgrad.model.learner import Forward, Learner
from warpgrad.model.partition import Adaptable, Warp

__all__ = ["Adaptable", "Forward", "Learner", "Warp"]

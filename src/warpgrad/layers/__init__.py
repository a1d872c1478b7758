"""Layers for warped models: the warps of the ablation, and the four architectures of App. A.

Functions return plain torch modules wherever torch has the parts; the few classes here add what it lacks.
Warp parts are marked, so `Learner(model)` finds θ and φ without being told.
"""

from warpgrad.layers.baselines import cavia_net, t_net
from warpgrad.layers.convolutional import (
    FEW_SHOT_ORDER,
    OMNIGLOT_ORDER,
    conv_block,
    warp_convnet,
    warp_residual_block,
    warp_resnet,
)
from warpgrad.layers.identity import identity_
from warpgrad.layers.recurrent import HyperState, WarpHyperCell, WarpHyperNetwork, WarpLSTM
from warpgrad.layers.variance import keep_variance_
from warpgrad.layers.warps import OMNIGLOT_WARPS, FiLM, Residual, Scale, convolutional_warp, feed_forward_warp

__all__ = [
    "FEW_SHOT_ORDER",
    "OMNIGLOT_ORDER",
    "OMNIGLOT_WARPS",
    "FiLM",
    "HyperState",
    "Residual",
    "Scale",
    "WarpHyperCell",
    "WarpHyperNetwork",
    "WarpLSTM",
    "cavia_net",
    "conv_block",
    "convolutional_warp",
    "feed_forward_warp",
    "identity_",
    "keep_variance_",
    "t_net",
    "warp_convnet",
    "warp_residual_block",
    "warp_resnet",
]

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
from warpgrad.layers.handover import hand_over
from warpgrad.layers.identity import identity_
from warpgrad.layers.recurrent import HyperState, WarpHyperCell, WarpHyperNetwork, WarpLSTM
from warpgrad.layers.sentences import SentenceClassifier, open_encoder, put_back, upper_part
from warpgrad.layers.transformer import LowRank, load_warped, merge_transformer, save_warped, warp_transformer
from warpgrad.layers.variance import keep_variance_
from warpgrad.layers.warps import OMNIGLOT_WARPS, FiLM, Residual, Scale, convolutional_warp, feed_forward_warp

__all__ = [
    "FEW_SHOT_ORDER",
    "OMNIGLOT_ORDER",
    "OMNIGLOT_WARPS",
    "FiLM",
    "HyperState",
    "LowRank",
    "Residual",
    "Scale",
    "SentenceClassifier",
    "WarpHyperCell",
    "WarpHyperNetwork",
    "WarpLSTM",
    "cavia_net",
    "conv_block",
    "convolutional_warp",
    "feed_forward_warp",
    "hand_over",
    "identity_",
    "keep_variance_",
    "load_warped",
    "merge_transformer",
    "open_encoder",
    "put_back",
    "save_warped",
    "t_net",
    "upper_part",
    "warp_convnet",
    "warp_residual_block",
    "warp_resnet",
    "warp_transformer",
]

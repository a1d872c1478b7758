"""What the paper compares with, beside the rules and initialisers: methods that need more than those parts."""

from warpgrad.baselines.ewc import OnlineEWC
from warpgrad.baselines.finetuning import HeadedTask, JointTraining, MultiHeaded
from warpgrad.baselines.kfac import KFAC, KFACAdaptation

__all__ = ["KFAC", "HeadedTask", "JointTraining", "KFACAdaptation", "MultiHeaded", "OnlineEWC"]

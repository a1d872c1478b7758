"""Baselines of the paper that need more than a rule and an initialiser: KFAC, online EWC, multi-headed finetuning."""

from warpgrad.baselines.ewc import OnlineEWC
from warpgrad.baselines.finetuning import HeadedTask, JointTraining, MultiHeaded
from warpgrad.baselines.kfac import KFAC, KFACAdaptation

__all__ = ["KFAC", "HeadedTask", "JointTraining", "KFACAdaptation", "MultiHeaded", "OnlineEWC"]

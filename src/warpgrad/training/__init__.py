"""Meta-training: runs an algorithm for many meta-steps, and survives whatever happens on the way."""

from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.meta_train import meta_train
from warpgrad.training.run_directory import RunDirectory

__all__ = ["EarlyStopping", "RunDirectory", "meta_train"]

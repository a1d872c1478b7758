"""The engine: runs an algorithm for many meta-steps, and survives whatever happens on the way."""

from warpgrad.engine.early_stopping import EarlyStopping
from warpgrad.engine.run_directory import RunDirectory
from warpgrad.engine.training import meta_train

__all__ = ["EarlyStopping", "RunDirectory", "meta_train"]

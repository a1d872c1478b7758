"""Meta-training: run an algorithm for many meta-steps, with checkpoints, validation, callbacks and ranks."""

from warpgrad.training.callbacks import Callback, StopTraining, Training
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.loggers import MLflowLogger, TensorBoardLogger, WandbLogger
from warpgrad.training.loop import MetaRecords
from warpgrad.training.meta_train import meta_train
from warpgrad.training.own_loop import MetaGradients, meta_gradient
from warpgrad.training.run_directory import RunDirectory
from warpgrad.training.saving import load, load_run, save

__all__ = [
    "Callback", "EarlyStopping", "MLflowLogger", "MetaGradients", "MetaRecords", "RunDirectory", "StopTraining",
    "TensorBoardLogger", "Training", "WandbLogger", "load", "load_run", "meta_gradient", "meta_train", "save",
]  # fmt: skip

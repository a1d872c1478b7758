"""Warped Gradient Descent on PyTorch. The map from the paper to the files is in `README.md` beside this file."""

from warpgrad.adaptation import Adaptation, Point, Transition
from warpgrad.algorithms import Algorithm, Continual, Offline, Online, Unrolled
from warpgrad.augmentation import compress, conv_warp, interleave, linear_warp, sized
from warpgrad.batched import BatchedAdaptation
from warpgrad.engine import EarlyStopping, meta_train
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.fitting import LearningCurve, adapt, evaluate, score
from warpgrad.forward import Forward
from warpgrad.initialisers import (
    FOMAML,
    MAML,
    Fixed,
    GaussianPrior,
    Initialiser,
    Leap,
    MultiTask,
    Reptile,
)
from warpgrad.learner import Learner
from warpgrad.meta_optimiser import MetaOptimiser
from warpgrad.method import Method
from warpgrad.objectives import Approximate, Exact, InPlace, Objective, Through
from warpgrad.partition import Adaptable, Warp
from warpgrad.replay import ReplayBudget, ReplayBuffer
from warpgrad.rules import SGD, Adam, Clip, Learned, Rule
from warpgrad.tasks import FunctionFamily, SupervisedTask, Task, TaskFamily, TaskList, accuracy
from warpgrad.version import __version__

__all__ = [
    "FOMAML",
    "MAML",
    "SGD",
    "Adam",
    "Adaptable",
    "Adaptation",
    "Algorithm",
    "Approximate",
    "BatchedAdaptation",
    "Clip",
    "Continual",
    "EarlyStopping",
    "Exact",
    "Fixed",
    "Forward",
    "FunctionFamily",
    "GaussianPrior",
    "InPlace",
    "Initialiser",
    "Leap",
    "Learned",
    "Learner",
    "LearningCurve",
    "MetaOptimiser",
    "Method",
    "MultiTask",
    "NonFiniteError",
    "Objective",
    "Offline",
    "Online",
    "Point",
    "ReplayBudget",
    "ReplayBuffer",
    "Reptile",
    "Rule",
    "SupervisedTask",
    "Task",
    "TaskFamily",
    "TaskList",
    "Through",
    "Transition",
    "Unrolled",
    "Warp",
    "WarpgradError",
    "__version__",
    "accuracy",
    "adapt",
    "compress",
    "conv_warp",
    "evaluate",
    "interleave",
    "linear_warp",
    "meta_train",
    "score",
    "sized",
]

"""Warped Gradient Descent in PyTorch; `README.md` beside this file maps the paper to the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.lazy import exports
from warpgrad.version import __version__

if TYPE_CHECKING:
    from warpgrad import zoo
    from warpgrad.adaptation.adapt import LearningCurve, adapt, evaluate, score
    from warpgrad.adaptation.base import Adaptation, Point, Transition
    from warpgrad.adaptation.many import Adapted, adapt_many
    from warpgrad.adaptation.stacked import BatchedAdaptation
    from warpgrad.algorithms import Algorithm, Continual, Offline, Online, Unrolled
    from warpgrad.algorithms.meta_optimiser import MetaOptimiser
    from warpgrad.algorithms.method import Method
    from warpgrad.algorithms.recipes import warp_leap, warp_maml, warp_rnn
    from warpgrad.algorithms.replay import ReplayBudget, ReplayBuffer
    from warpgrad.analysis.check import check
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
    from warpgrad.layers.augmentation import compress, conv_warp, interleave, linear_warp, sized
    from warpgrad.layers.transformer import merge_transformer, warp_transformer
    from warpgrad.model.learner import Forward, Learner
    from warpgrad.model.partition import Adaptable, Warp
    from warpgrad.objectives import Approximate, Exact, InPlace, Objective, UnrolledObjective
    from warpgrad.rules import SGD, Adam, Clip, Learned, Rule
    from warpgrad.tasks import (
        DatasetTask,
        EnvironmentTask,
        FewShotFamily,
        FunctionFamily,
        SupervisedTask,
        Task,
        TaskFamily,
        TaskList,
        accuracy,
        tasks_by_group,
    )
    from warpgrad.training import (
        Callback,
        EarlyStopping,
        MetaGradients,
        StopTraining,
        load,
        load_run,
        meta_gradient,
        save,
    )
    from warpgrad.training.meta_train import meta_train

__getattr__, __dir__ = exports(
    globals(),
    {
        "warpgrad.adaptation.adapt": "LearningCurve adapt evaluate score",
        "warpgrad.adaptation.base": "Adaptation Point Transition",
        "warpgrad.adaptation.many": "Adapted adapt_many",
        "warpgrad.adaptation.stacked": "BatchedAdaptation",
        "warpgrad.algorithms": "Algorithm Continual Offline Online Unrolled",
        "warpgrad.algorithms.meta_optimiser": "MetaOptimiser",
        "warpgrad.algorithms.method": "Method",
        "warpgrad.algorithms.recipes": "warp_leap warp_maml warp_rnn",
        "warpgrad.algorithms.replay": "ReplayBudget ReplayBuffer",
        "warpgrad.analysis.check": "check",
        "warpgrad.initialisers": "FOMAML MAML Fixed GaussianPrior Initialiser Leap MultiTask Reptile",
        "warpgrad.layers.augmentation": "compress conv_warp interleave linear_warp sized",
        "warpgrad.layers.transformer": "merge_transformer warp_transformer",
        "warpgrad.model.learner": "Forward Learner",
        "warpgrad.model.partition": "Adaptable Warp",
        "warpgrad.objectives": "Approximate Exact InPlace Objective UnrolledObjective",
        "warpgrad.rules": "SGD Adam Clip Learned Rule",
        "warpgrad.tasks": "DatasetTask EnvironmentTask FewShotFamily FunctionFamily SupervisedTask Task TaskFamily "
        "TaskList accuracy tasks_by_group",
        "warpgrad.training": (
            "Callback EarlyStopping MetaGradients StopTraining load load_run meta_gradient meta_train save"
        ),
    },
    folders=("zoo",),
)

__all__ = [
    "FOMAML",
    "MAML",
    "SGD",
    "Adam",
    "Adaptable",
    "Adaptation",
    "Adapted",
    "Algorithm",
    "Approximate",
    "BatchedAdaptation",
    "Callback",
    "Clip",
    "Continual",
    "DatasetTask",
    "EarlyStopping",
    "EnvironmentTask",
    "Exact",
    "FewShotFamily",
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
    "MetaGradients",
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
    "StopTraining",
    "SupervisedTask",
    "Task",
    "TaskFamily",
    "TaskList",
    "Transition",
    "Unrolled",
    "UnrolledObjective",
    "Warp",
    "WarpgradError",
    "__version__",
    "accuracy",
    "adapt",
    "adapt_many",
    "check",
    "compress",
    "conv_warp",
    "evaluate",
    "interleave",
    "linear_warp",
    "load",
    "load_run",
    "merge_transformer",
    "meta_gradient",
    "meta_train",
    "save",
    "score",
    "sized",
    "tasks_by_group",
    "warp_leap",
    "warp_maml",
    "warp_rnn",
    "warp_transformer",
    "zoo",
]

"""Tasks that a learner is adapted to; `warpgrad.tasks.base` defines tasks and families of tasks."""

from warpgrad.tasks.base import Batch, Task, TaskFamily
from warpgrad.tasks.continual import ContinualTask, SubTask, TensorSubTask
from warpgrad.tasks.datasets import DatasetTask, FewShotFamily, tasks_by_group
from warpgrad.tasks.environments import EnvironmentTask
from warpgrad.tasks.supervised import FunctionFamily, MeasuredTask, SupervisedTask, TaskList, accuracy

__all__ = [
    "Batch",
    "ContinualTask",
    "DatasetTask",
    "EnvironmentTask",
    "FewShotFamily",
    "FunctionFamily",
    "MeasuredTask",
    "SubTask",
    "SupervisedTask",
    "Task",
    "TaskFamily",
    "TaskList",
    "TensorSubTask",
    "accuracy",
    "tasks_by_group",
]

"""What classification tasks on images have in common: a batch, its loss, its scores."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from warpgrad.forward import Forward
from warpgrad.tasks.base import Task
from warpgrad.tasks.supervised import accuracy

ImageBatch = tuple[Tensor, Tensor]
"""(images float [n, channels, height, width], labels [n])."""


class Classification(Task):
    """Negative log-likelihood of labels, and at test the accuracy besides. Batches are the subclass's."""

    def loss(self, forward: Forward, batch: ImageBatch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(forward(images), labels)

    def metrics(self, forward: Forward, batch: ImageBatch) -> dict[str, float]:
        images, labels = batch
        prediction = forward(images)
        return {
            "loss": float(F.cross_entropy(prediction, labels).detach()),
            "accuracy": float(accuracy(prediction, labels)),
        }

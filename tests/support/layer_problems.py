"""Inputs for layers, and one exact meta-step through them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.keys import generator


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=generator("layers", *shape), dtype=torch.float64).to(dtype)


def exact_step(model: nn.Module, inputs: torch.Tensor, classes: int, objective=None, lr=0.1, **options):
    """One adaptation step and the gradients of the exact objective there."""
    targets = torch.arange(len(inputs)) % classes
    other = inputs.flip(0) * 0.9
    task = wg.SupervisedTask(inputs, targets, F.cross_entropy, meta=(other, targets))
    learner = wg.Learner(model, **options)
    adaptation = wg.Adaptation(learner, wg.SGD(lr=lr), task, 0)
    return adaptation, (objective or wg.Exact()).step(adaptation, adaptation.start())


def assert_every_gradient(model: nn.Module, inputs: torch.Tensor, classes: int, **options) -> None:
    adaptation, step = exact_step(model, inputs, classes, **options)
    assert set(step.transition.gradient) == set(adaptation.learner.theta0)
    assert set(step.phi) == set(adaptation.learner.phi)
    for name, gradient in {**step.transition.gradient, **step.phi}.items():
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().sum() > 0, f"{name} gets no gradient"

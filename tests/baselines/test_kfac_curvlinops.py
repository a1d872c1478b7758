"""Our KFAC against an independent implementation: curvlinops' factors, products and steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.curvlinops_kfac import LibraryKFAC
from warpgrad.baselines.kfac import KFAC, KFACAdaptation
from warpgrad.tasks.supervised import SupervisedTask


def half_square(prediction, target):
    return 0.5 * (prediction - target).square().sum(dim=1).mean()


def problem(likelihood):
    """A small network of the kind that is preconditioned: convolutions with stride, batch-norm, a linear head."""
    draw = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Conv2d(4, 3, 2, bias=False),
        nn.Flatten(),
        nn.Linear(12, 5),
    )
    images = torch.randn(7, 2, 6, 6, generator=draw, dtype=torch.float64)
    if likelihood == "categorical":
        task = SupervisedTask(images, torch.randint(5, (7,), generator=draw), F.cross_entropy)
    else:
        task = SupervisedTask(images, torch.randn(7, 5, generator=draw, dtype=torch.float64), half_square)
    return wg.Learner(module.double(), warp=()), task


def walk(settings, steps, likelihood="categorical", kind=KFACAdaptation):
    learner, task = problem(likelihood)
    adaptation = kind(learner, task, 3, settings)
    point = adaptation.start()
    for _ in range(steps):
        point = adaptation.step(point).after
    return point


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
@pytest.mark.parametrize("fisher", ["sampled", "exact"])
def test_a_walk_with_the_librarys_factors_is_ours(likelihood, fisher):
    """Six steps with estimates and inversions on their schedules, damped and bounded: the same θ. The drawn labels are
    the same too, being keyed."""
    settings = KFAC(0.3, likelihood=likelihood, fisher=fisher, damping=1e-2, estimate_every=2, invert_every=3, clip=0.5)
    own = walk(settings, 6, likelihood)
    library = walk(settings, 6, likelihood, LibraryKFAC)
    for name, value in own.theta.items():
        torch.testing.assert_close(library.theta[name], value, atol=1e-10, rtol=1e-10)
    start = walk(settings, 0, likelihood)
    assert float((own.theta["0.weight"] - start.theta["0.weight"]).norm()) > 1e-2


def test_the_kronecker_products_are_equal():
    """A and G of a convolution differ by the number of locations, each the other way; A ⊗ G does not."""
    own = walk(KFAC(0.1), 1).state
    library = walk(KFAC(0.1), 1, kind=LibraryKFAC).state
    assert set(own) == set(library)
    for name in ("0", "3", "5"):
        ours, theirs = (torch.kron(state[f"kfac/A/{name}"], state[f"kfac/G/{name}"]) for state in (own, library))
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)
    assert not torch.allclose(own["kfac/A/0"], library["kfac/A/0"])

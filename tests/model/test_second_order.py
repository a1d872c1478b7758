"""The hand-written second derivatives against PyTorch's own, in float64."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from warpgrad.adaptation.base import Adaptation
from warpgrad.model.learner import Learner
from warpgrad.model.partition import Warp
from warpgrad.model.second_order import SecondOrderKernels
from warpgrad.model.second_order.batch_norm import BatchNorm
from warpgrad.model.second_order.convolution import Convolution
from warpgrad.model.second_order.pooling import MaxPool2d
from warpgrad.objectives import Exact, UnrolledObjective
from warpgrad.rules import SGD
from warpgrad.tasks.supervised import SupervisedTask

MODULES = {
    "conv": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "conv, no bias": lambda: nn.Conv2d(3, 4, 3, bias=False),
    "conv, stride and dilation": lambda: nn.Conv2d(3, 4, 3, stride=2, padding=2, dilation=2),
    "conv, groups": lambda: nn.Conv2d(3, 6, 3, groups=3),
    "conv, same": lambda: nn.Conv2d(3, 4, 3, padding="same"),
    "conv 1-D": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 2, 5, stride=2)),
    "conv 3-D": lambda: nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv3d(3, 2, (1, 3, 3))),
    "batch norm": lambda: nn.BatchNorm2d(3),
    "batch norm, no affine": lambda: nn.BatchNorm2d(3, affine=False),
    "batch norm, no statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False, eps=0.1),
    "batch norm 1-D": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3 * 36)),
    "max-pool": lambda: nn.MaxPool2d(2),
    "max-pool, overlapping": lambda: nn.MaxPool2d(3, stride=1, padding=1),
    "max-pool, ceil": lambda: nn.MaxPool2d(4, ceil_mode=True),
}


def derivatives(module, image, kernels):
    """The loss's gradients and a product of the Hessian with a fixed vector, for the image and all parameters."""
    image = image.clone().requires_grad_()
    inputs = [image, *module.parameters()]
    with kernels:
        output = module(image)
    loss = (output.sin() * torch.linspace(0.5, 1.5, output.numel()).double().view_as(output)).sum()
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(g.shape, generator=generator, dtype=g.dtype) for g in first]
    total = sum((g * v).sum() for g, v in zip(first, vectors, strict=True))
    return output, first, torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", MODULES)
def test_each_operation_has_the_derivatives_of_pytorch(name, layout):
    torch.manual_seed(0)
    module = MODULES[name]().double()
    image = torch.randn(4, 3, 6, 6, dtype=torch.float64).contiguous(memory_format=layout)
    # The loss is non-linear in the output, so that max-pooling has a second derivative to get right.
    wanted = derivatives(module, image, nullcontext())
    found = derivatives(module, image, SecondOrderKernels())
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_operations_are_really_replaced():
    image = torch.randn(4, 3, 6, 6, requires_grad=True)
    kinds = {nn.Conv2d(3, 4, 3): Convolution, nn.BatchNorm2d(3): BatchNorm, nn.MaxPool2d(2): MaxPool2d}
    with SecondOrderKernels():
        for module, kind in kinds.items():
            assert kind.__name__ in type(module(image).grad_fn).__name__
    assert type(nn.Conv2d(3, 4, 3)(image).grad_fn).__name__ == "ConvolutionBackward0"


def test_running_statistics_move_as_always():
    torch.manual_seed(0)
    ours, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    image = torch.randn(4, 3, 6, 6)
    with SecondOrderKernels():
        ours(image)
    theirs(image)
    assert torch.equal(ours.running_mean, theirs.running_mean)
    assert torch.equal(ours.running_var, theirs.running_var)
    # At test there is nothing to write by hand.
    with SecondOrderKernels():
        assert torch.equal(ours.eval()(image), theirs.eval()(image))


def test_a_bias_alone_has_no_second_derivative_but_passes_one_on():
    """The gradient of the bias is linear in the output's gradient: its cotangent is spread over all places."""
    torch.manual_seed(0)
    module = nn.Conv2d(3, 2, 3).double()
    image = torch.randn(2, 3, 5, 5, dtype=torch.float64)

    def found(kernels):
        with kernels:
            loss = module(image).pow(3).sum()
        (bias,) = torch.autograd.grad(loss, [module.bias], create_graph=True)
        return torch.autograd.grad(bias.sum(), list(module.parameters()))

    torch.testing.assert_close(found(SecondOrderKernels()), found(nullcontext()))


def test_constants_get_a_gradient_but_no_second_one():
    torch.manual_seed(0)
    weight = torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    image = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)

    def found(constant):
        with SecondOrderKernels(constant=constant):
            loss = F.conv2d(image, weight).sum()
        along_image, along_weight = torch.autograd.grad(loss, [image, weight], create_graph=True)
        return along_image, along_weight

    for ours, theirs in zip(found([weight]), found([]), strict=True):
        assert torch.equal(ours, theirs)
    # The gradient for the image is linear in W, and the loss in the output: nothing else depends on W.
    assert torch.autograd.grad(found([weight])[0].sum(), [weight], allow_unused=True) == (None,)
    assert torch.autograd.grad(found([])[0].sum(), [weight])[0].abs().sum() > 0


class Kernels(TorchDispatchMode):
    """Counts what backward passes of convolutions compute: (image, weight, bias) of each."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.seen.append(tuple(args[-1]))
        return func(*args, **(kwargs or {}))


def test_only_gradients_that_were_asked_for_are_computed():
    """As with PyTorch's own operations: the inner gradient is none for φ, and the meta-gradient none for θ."""
    torch.manual_seed(0)
    theta, phi = (torch.randn(3, 3, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    image = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    found = {}
    for kernels in (SecondOrderKernels([theta]), nullcontext()):
        with kernels:
            loss = F.conv2d(F.conv2d(image, phi), theta).sin().sum()
        with Kernels() as inner:
            (slope,) = torch.autograd.grad(loss, [theta], create_graph=True)
        with Kernels() as meta:
            (gradient,) = torch.autograd.grad(slope.square().sum(), [phi])
        found[type(kernels)] = (gradient, inner.seen, meta.seen)
    (ours, inner, meta), (theirs, expected, _) = found.values()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    # θ's layer alone is passed: φ's lies before it.
    assert inner == expected == [(False, True, False)]
    # The image that φ's layer made acts on the slope by itself (vW) and through the loss; then φ's own weights.
    assert meta == [(True, False, False), (True, False, False), (False, True, False)]


def test_gradients_can_be_accumulated_too():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)).double()
    image = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    found = []
    for kernels in (SecondOrderKernels(), nullcontext()):
        module.zero_grad()
        with kernels:
            loss = module(image).pow(3).sum()
        loss.backward()
        found.append([parameter.grad for parameter in module.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


class WithoutKernels(Learner):
    """The reference: PyTorch's own second derivatives."""

    def _kernels(self, theta):
        return nullcontext()


@pytest.mark.parametrize("channels_last", [False, True])
def test_meta_gradients_are_the_same_with_and_without(channels_last):
    found = []
    for kind in (Learner, WithoutKernels):
        torch.manual_seed(0)
        block = [nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.ReLU()]
        warp = Warp(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()))
        module = nn.Sequential(*block, warp, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 9, 3)).double()
        learner = kind(module, channels_last=channels_last)
        images = torch.randn(6, 1, 10, 10, dtype=torch.float64)
        task = SupervisedTask(images, torch.arange(6) % 3, F.cross_entropy, batch_size=6)
        adaptation = Adaptation(learner, SGD(0.5), task, 0)
        point = adaptation.step(adaptation.start()).after
        step = Exact().step(adaptation, point)
        through = adaptation.compute(UnrolledObjective(2), point)
        found.append((step.phi, step.transition.after.theta, through.theta0, through.phi))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)

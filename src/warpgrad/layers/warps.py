"""Warp-layers ω of a given width, from the weakest to the strongest that App. F compares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import nn

from warpgrad.errors import WarpgradError
from warpgrad.layers.modulation import Scale
from warpgrad.layers.residual import Residual
from warpgrad.partition import Warp

MakeModule = Callable[[], nn.Module]
MakeWarp = Callable[[int], nn.Module]
"""width -> a warp-layer from that width to the same width."""


def convolutional_warp(
    width: int,
    *,
    kernel_size: int = 3,
    hidden: int | None = None,
    batch_norm: bool = False,
    residual: bool = False,
    activation: MakeModule | None = None,
    hidden_activation: MakeModule | None = nn.ReLU,
    film: MakeWarp | None = None,
) -> nn.Module:
    """One or two convolutions that keep width and image size, marked as warp.

    In order: convolution, batch-norm, [hidden activation, FiLM, convolution, batch-norm,] ⊕, activation.

    Args:
        width: The number of channels in and out.
        kernel_size: Odd.
        hidden: The channels between two stacked convolutions; None is a single one.
        batch_norm: Normalise after each convolution.
        residual: Add the input.
        activation: The last non-linearity, e.g. `nn.ReLU`.
        hidden_activation: The non-linearity between stacked convolutions. App. F lists none for its two-layer
            warps, while App. G says of the same ones that they have ReLUs: this is where ours stands.
        film: Between stacked convolutions, e.g. `Scale` or `partial(FiLM, embedding=16)`. It is left
            unmarked, hence θ; begin it at 0 on every task with `Learner(..., start={"*film": "zero"})`.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise WarpgradError(f"convolutional_warp(kernel_size={kernel_size}): the kernel size must be odd.")
    if film is not None and hidden is None:
        raise WarpgradError("convolutional_warp(film=...) stands between two convolutions: give hidden= too.")

    def convolution(inputs: int, outputs: int) -> nn.Module:
        # A bias in front of batch-norm would be removed by it again.
        return nn.Conv2d(inputs, outputs, kernel_size, padding=kernel_size // 2, bias=not batch_norm)

    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if hidden is not None:
        layers["conv1"] = Warp(convolution(width, hidden))
        if batch_norm:
            layers["norm1"] = Warp(nn.BatchNorm2d(hidden))
        if hidden_activation is not None:
            layers["activation1"] = hidden_activation()
        if film is not None:
            layers["film"] = film(hidden)
    layers["conv"] = Warp(convolution(width if hidden is None else hidden, width))
    if batch_norm:
        layers["norm"] = Warp(nn.BatchNorm2d(width))
    return _finished(layers, residual, activation)


def feed_forward_warp(
    width: int,
    *,
    hidden: int | None = None,
    residual: bool = False,
    activation: MakeModule | None = None,
    hidden_activation: MakeModule | None = nn.Tanh,
    branch_activation: MakeModule | None = None,
) -> nn.Module:
    """One linear layer, or two around `hidden` units, marked as warp. Options as in `convolutional_warp`, and:

    Args:
        branch_activation: A non-linearity in front of ⊕. With `nn.Tanh` a residual warp moves no unit by more than 1.

    The warp of App. J is `feed_forward_warp(200, hidden=100, residual=True, branch_activation=nn.Tanh)`.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if hidden is not None:
        layers["linear1"] = Warp(nn.Linear(width, hidden))
        if hidden_activation is not None:
            layers["activation1"] = hidden_activation()
    layers["linear"] = Warp(nn.Linear(width if hidden is None else hidden, width))
    if branch_activation is not None:
        layers["branch_activation"] = branch_activation()
    return _finished(layers, residual, activation)


def _finished(layers: OrderedDict[str, nn.Module], residual: bool, activation: MakeModule | None) -> nn.Module:
    """The layers as one module: bare where there is but one."""
    body = next(iter(layers.values())) if len(layers) == 1 else nn.Sequential(layers)
    if residual:
        body = Residual(body)
    if activation is None:
        return body
    return nn.Sequential(OrderedDict(body=body, activation=activation()))


def _two_layer(width: int, *, activation: MakeModule | None = None, film: MakeWarp | None = None) -> nn.Module:
    return convolutional_warp(width, hidden=2 * width, batch_norm=True, residual=True, activation=activation, film=film)


OMNIGLOT_WARPS: Mapping[str, MakeWarp] = MappingProxyType(
    {
        "scaling": lambda width: Warp(Scale(width)),
        "conv1x1": partial(convolutional_warp, kernel_size=1),
        "conv3x3": convolutional_warp,
        "conv3x3+relu": partial(convolutional_warp, activation=nn.ReLU),
        "conv3x3+bn": partial(convolutional_warp, batch_norm=True),
        "conv3x3+bn+relu": partial(convolutional_warp, batch_norm=True, activation=nn.ReLU),
        "conv3x3+bn+res+relu": partial(convolutional_warp, batch_norm=True, residual=True, activation=nn.ReLU),
        "two-layer+bn+res": _two_layer,
        "two-layer+bn+res+relu": partial(_two_layer, activation=nn.ReLU),
        "two-layer+bn+res+film": partial(_two_layer, film=Scale),
    }
)
"""The warps that App. F and G compare, by name. With 64 channels the two-layer ones go 64 → 128 → 64."""

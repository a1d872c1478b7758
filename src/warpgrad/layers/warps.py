"""Warp-layers ω of a given width, from the weakest to the strongest that App. F compares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn

from warpgrad.errors import require
from warpgrad.model.partition import Warp


class Residual(nn.Module):
    """shortcut(h) + branch(h), with the identity as the default shortcut.

    Example:
        >>> layers.Residual(nn.ReLU())(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  4.])
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, h: Tensor) -> Tensor:
        return cast(Tensor, self.shortcut(h) + self.branch(h))


class Scale(nn.Module):
    """Per-channel h ⊙ (1 + scale) + shift, with scale and shift initialised to zero.

    Unmarked, it is a weak task layer or, between two warp convolutions, the FiLM layer that App. F adapts from 0;
    inside `Warp(...)`, it is the ablation's channel-wise scaling.

    Example:
        >>> h = torch.rand(2, 3, 4, 4)
        >>> torch.equal(layers.Scale(3)(h), h)
        True
    """

    def __init__(self, width: int, *, shift: bool = True, dim: int = 1) -> None:
        """
        Args:
            width: The number of channels.
            shift: Whether to shift besides scaling.
            dim: Where the channels are: 1 for images and plain features, -1 for (batch, time, feature).
        """
        super().__init__()
        _check(self, width=width)
        self.dim = dim
        self.scale = nn.Parameter(torch.zeros(width))
        self.shift = nn.Parameter(torch.zeros(width)) if shift else None

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, h: Tensor) -> Tensor:
        return _modulate(h, self.scale, self.shift, self.dim)


class FiLM(nn.Module):
    """A task embedding e: h ⊙ (1 + P_scale e) + P_shift e. e is θ and starts at 0, the projections P are φ.

    The projections have no bias, so that e = 0 is the identity map whatever φ is. Warning: at e = 0 their
    first-order gradient is zero; they learn through the step that e takes, from the objective after it.

    Example:
        >>> film = wg.Learner(layers.FiLM(3, embedding=8), start={"embedding": "zero"})
        >>> sorted(film.theta0), sorted(film.phi)
        (['embedding'], ['projection.weight'])
    """

    def __init__(self, width: int, *, embedding: int = 16, dim: int = 1) -> None:
        """
        Args:
            width: The number of channels.
            embedding: The size of e.
            dim: Where the channels are, as in `Scale`.
        """
        super().__init__()
        _check(self, width=width, embedding=embedding)
        self.dim = dim
        self.embedding = nn.Parameter(torch.zeros(embedding))
        self.projection = Warp(nn.Linear(embedding, 2 * width, bias=False))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.embedding)

    def forward(self, h: Tensor) -> Tensor:
        scale, shift = cast(Tensor, self.projection(self.embedding)).chunk(2)
        return _modulate(h, scale, shift, self.dim)


def _modulate(h: Tensor, scale: Tensor, shift: Tensor | None, dim: int) -> Tensor:
    shape = [1] * h.ndim
    shape[dim] = -1
    h = h * (1 + scale.view(shape))
    return h if shift is None else h + shift.view(shape)


def _check(layer: nn.Module, **sizes: int) -> None:
    for name, size in sizes.items():
        require(size >= 1, f"{type(layer).__name__}({name}={size}): {name} must be at least 1.")


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
    """Return one or two convolutions that keep width and image size, marked as warp.

    The order is convolution, batch-norm, [hidden activation, FiLM, convolution, batch-norm,] ⊕, activation.

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

    Example:
        >>> warp = layers.convolutional_warp(4, hidden=8, batch_norm=True, residual=True)
        >>> tuple(warp(torch.rand(2, 4, 6, 6)).shape)
        (2, 4, 6, 6)
    """
    require(
        kernel_size >= 1 and kernel_size % 2 == 1,
        f"convolutional_warp(kernel_size={kernel_size}): the kernel size must be odd.",
    )
    require(
        film is None or hidden is not None,
        "convolutional_warp(film=...) goes between two convolutions: pass hidden= too.",
    )

    def convolution(inputs: int, outputs: int) -> nn.Module:
        # Batch-norm would remove a bias in front of it.
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
    """Return one linear layer, or two around `hidden` units, marked as warp.

    Options that are not listed here are as in `convolutional_warp`.

    Args:
        branch_activation: A non-linearity in front of ⊕. With `nn.Tanh` a residual warp moves no unit by more than 1.

    The warp of App. J is `feed_forward_warp(200, hidden=100, residual=True, branch_activation=nn.Tanh)`.

    Example:
        >>> tuple(layers.feed_forward_warp(6, hidden=3, residual=True)(torch.rand(2, 6)).shape)
        (2, 6)
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
    """Combine the layers into one module; a single layer is not wrapped."""
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

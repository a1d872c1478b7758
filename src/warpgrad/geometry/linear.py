"""Ω in explicit form, for models whose warp-layers are linear."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from warpgrad.errors import WarpgradError
from warpgrad.geometry.metric import Omega
from warpgrad.learner import Learner
from warpgrad.tensors import Tensors


def flattened(tensors: Mapping[str, Tensor]) -> Tensor:
    """θ as the flat vector that an explicit Ω takes, in the order of its names."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def unflattened(vector: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `flattened`, with the names and shapes of `like`; differentiable."""
    sizes = [tensor.numel() for tensor in like.values()]
    if vector.shape != (sum(sizes),):
        raise WarpgradError(f"a flat vector of {sum(sizes)} numbers is needed, not shape {tuple(vector.shape)}.")
    parts = zip(like.items(), torch.split(vector, sizes), strict=True)
    return {name: part.reshape(tensor.shape) for (name, tensor), part in parts}


def linear_omega(learner: Learner) -> Omega:
    """Ω of a model whose warp-layers are linear, x ↦ T x + t, each directly after a linear task layer.

    γ has θ's names in θ's order: W ↦ T W and b ↦ T b + t for a warped layer, everything else as it is. The model
    at θ equals the same model without warp-layers at γ. DΩ is constant and, with parameters sorted by column of W,
    block-diagonal with a block T per column. Ω reads φ when it is called and is differentiable in it.
    """
    warps = _linear_warps(learner)

    def omega(theta: Tensor) -> Tensor:
        gamma = unflattened(theta, learner.theta0)
        for path, warp in warps.items():
            weight, bias = f"{path}.weight", f"{path}.bias"
            gamma[weight] = warp.weight @ gamma[weight]
            if bias in gamma:
                gamma[bias] = linear(gamma[bias], warp.weight, warp.bias)
        return flattened(gamma)

    return omega


def _linear_warps(learner: Learner) -> dict[str, nn.Linear]:
    """The name of every warped task layer with the warp-layer behind it."""
    module = learner.module
    warps: dict[str, nn.Linear] = {}
    left = set(learner.phi)
    for path, container in module.named_modules():
        if type(container).forward is not nn.Sequential.forward:
            continue
        children = [(f"{path}.{name}" if path else name, child) for name, child in container.named_children()]
        for (task_name, task), (warp_name, warp) in pairwise(children):
            theta = {f"{task_name}.{name}" for name, _ in task.named_parameters()}
            phi = {f"{warp_name}.{name}" for name, _ in warp.named_parameters()}
            both = type(task) is nn.Linear and type(warp) is nn.Linear
            if both and theta <= set(learner.theta0) and phi <= left and len(phi) <= len(theta):
                warps[task_name] = cast(nn.Linear, warp)
                left -= phi
    if left:
        raise WarpgradError(
            f"Ω has no explicit linear form because of '{min(left)}': every warp-layer must be an nn.Linear directly "
            "after an nn.Linear of θ in an nn.Sequential, with a bias only where that layer has one to take it up."
        )
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        raise WarpgradError("Ω has no explicit linear form for a model with tied parameters; untie them.")
    return warps

"""Operations written out in plain ones, because PyTorch's own second derivative is wrong or missing.

| operation               | PyTorch 2.13, differentiated twice                        |
|-------------------------|-----------------------------------------------------------|
| `torch._weight_norm`    | silently wrong; both kinds of `weight_norm` use it        |
| `torch.cdist`, `pdist`  | not implemented                                           |
| `F.embedding_bag`       | not implemented                                           |
| `F.hardsigmoid`         | not implemented                                           |

The values are the same up to rounding. Where a distance is 0 its derivative is taken as 0, as PyTorch takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Compute g · v / ‖v‖, with a norm for each index of dimension `dim`, or one for all if that is −1."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor:
    """Compute ‖x1_i − x2_j‖_p for all pairs of rows."""
    del compute_mode
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Compute ‖x_i − x_j‖_p for i < j."""
    first, second = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return _norm(input[first] - input[second], p)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Compute min(max(x + 3, 0), 6) / 6."""
    del inplace
    return F.relu6(input + 3) / 6


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Look up the rows of each bag, then reduce them to their sum, mean or largest entries."""
    if input.is_floating_point():  # older signature: weight first
        input, weight = weight, input
    special = max_norm is not None or scale_grad_by_freq or sparse or include_last_offset
    if special or (mode == "max" and (offsets is not None or padding_idx is not None)):
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    flat = input.reshape(-1)
    if input.ndim == 2:
        bags, count = torch.arange(len(input), device=input.device).repeat_interleave(input.shape[1]), len(input)
    else:
        assert offsets is not None, "a flat input has offsets: PyTorch has refused it otherwise"
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(flat)])])
        bags, count = torch.arange(len(offsets), device=input.device).repeat_interleave(ends - offsets), len(offsets)
    rows = F.embedding(flat, weight)
    if mode == "max":
        return rows.view(*input.shape, -1).amax(dim=1)
    kept = torch.ones(len(flat), dtype=weight.dtype, device=weight.device)
    if padding_idx is not None:
        kept = (flat != padding_idx).to(weight.dtype)
    factor = kept if per_sample_weights is None else kept * per_sample_weights.reshape(-1)
    total = rows.new_zeros(count, weight.shape[1]).index_add(0, bags, rows * factor.unsqueeze(1))
    if mode == "sum":
        return total
    sizes = kept.new_zeros(count).index_add(0, bags, kept)
    return total / sizes.clamp(min=1).unsqueeze(1)


PLAIN_FORMS: dict[Any, Callable[..., Tensor]] = {
    torch._weight_norm: weight_norm,
    torch.cdist: cdist,
    torch.pdist: pdist,
    F.hardsigmoid: hardsigmoid,
    F.embedding_bag: embedding_bag,
}


def silently_wrong(module: nn.Module) -> bool:
    """Return whether the module uses an operation whose second derivative PyTorch silently gets wrong."""
    for child in module.modules():
        hooks = child._forward_pre_hooks.values()
        if any(type(hook).__name__ == "WeightNorm" for hook in hooks):
            return True
        if isinstance(child, ParametrizationList) and any(type(one).__name__ == "_WeightNorm" for one in child):
            return True
    return False


def _norm(difference: Tensor, p: float) -> Tensor:
    size = difference.abs()
    if p == 1:
        return size.sum(-1)
    if p == float("inf"):
        return size.amax(-1)
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    total = difference.square().sum(-1) if p == 2 else size.pow(p).sum(-1)
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1.0).pow(1 / p), 0.0)

"""The networks of the benchmark written out over named tensors: what a person without the library would write.

Each is (θ, φ, batch, statistics) -> loss. `statistics` are running statistics of batch-norm that the pass may write to;
an empty one keeps none. Names are those of the modules in `workloads.py`, so that both read the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpgrad.experiments.synthetic.surfaces import surface

Named = Mapping[str, Tensor]
Loss = Callable[[Named, Named, Any, Named], Tensor]

BLOCKS = 4


def convolutional(theta: Named, phi: Named, batch: tuple[Tensor, Tensor], statistics: Named) -> Tensor:
    """Four blocks of convolution, pooling, batch-norm and ReLU, each with a 3×3 warp where φ has one, then a head."""
    x, labels = batch
    for place in range(1, BLOCKS + 1):
        norm = f"block{place}.norm"
        x = F.max_pool2d(F.conv2d(x, theta[f"block{place}.conv.weight"], padding=1), 2)
        running = statistics.get(f"{norm}.running_mean"), statistics.get(f"{norm}.running_var")
        x = F.relu(F.batch_norm(x, *running, theta[f"{norm}.weight"], theta[f"{norm}.bias"], training=True))
        if phi:
            x = F.conv2d(x, phi[f"warp{place}.weight"], phi[f"warp{place}.bias"], padding=1)
    return F.cross_entropy(F.linear(x.flatten(1), theta["head.weight"], theta["head.bias"]), labels)


def feed_forward(theta: Named, phi: Named, batch: tuple[Tensor, Tensor], statistics: Named) -> Tensor:
    """Three hidden layers of ReLUs, each with a residual tanh warp where φ has one, and a linear head."""
    del statistics
    x, targets = batch
    for place in range(1, 4):
        x = F.relu(F.linear(x, theta[f"linear{place}.weight"], theta[f"linear{place}.bias"]))
        if phi:
            first, last = f"warp{place}.branch.linear1", f"warp{place}.branch.linear"
            hidden = torch.tanh(F.linear(x, phi[f"{first}.weight"], phi[f"{first}.bias"]))
            x = x + torch.tanh(F.linear(hidden, phi[f"{last}.weight"], phi[f"{last}.bias"]))
    return F.mse_loss(F.linear(x, theta["head.weight"], theta["head.bias"]), targets)


def on_surface(theta: Named, phi: Named, batch: Tensor, statistics: Named) -> Tensor:
    """The height at Ω(θ) = θ + g(θ), g a tanh net."""
    del statistics
    start = theta["theta"]
    hidden = torch.tanh(F.linear(start, phi["omega.g.0.weight"], phi["omega.g.0.bias"]))
    return surface(start + F.linear(hidden, phi["omega.g.2.weight"], phi["omega.g.2.bias"]), batch)

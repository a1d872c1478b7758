"""KFAC's factors by curvlinops, an independent library (extra `kfac`): what ours are checked against.

What bites: it takes the mean over a convolution's locations for A and the sum for G, we the other way round. A ⊗ G is
the same, and so is a damped step, for damping is divided by the ratio of their sizes.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from warpgrad.baselines.kfac_factors import Fisher, Layer, Likelihood, Seen, parameter_name
from warpgrad.errors import WarpgradError
from warpgrad.keys import isolated_rng, seed_global
from warpgrad.learner import Learner
from warpgrad.tensors import Tensors


def library_factors(
    learner: Learner,
    layers: Mapping[str, Layer],
    theta: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    seen: Seen,
    likelihood: Likelihood,
    fisher: Fisher,
    key: int,
) -> Tensors:
    """`A/<layer>` and `G/<layer>` of the batch that was seen at θ and buffers; `key` seeds drawn labels and dropout.

    A task gives its loss, not its labels, so gradients are over labels of the model's own.
    """
    if fisher == "empirical":
        raise WarpgradError("curvlinops cannot see a task's labels: use KFAC(fisher='sampled') or 'exact' with it.")
    arguments, output = seen.arguments[-1], seen.final[-1]
    if len(arguments) != 1 or output.ndim != 2:
        raise WarpgradError("curvlinops takes models of one input whose output is [examples, outputs].")
    library = load_curvlinops()
    module = learner.adapted(theta, buffers)
    for child, own in zip(module.modules(), learner.module.modules(), strict=True):
        child.training = own.training
    parameters = dict(module.named_parameters())
    names = [parameter_name(name, local) for name, layer in layers.items() for local, _ in layer.named_parameters()]
    if likelihood == "categorical":
        loss: nn.Module = nn.CrossEntropyLoss()
        labels = torch.zeros(len(output), dtype=torch.long, device=output.device)
        scale = 1.0
    else:
        # Its Gaussian has half our variance, and its sum is ours times the number of examples.
        loss, labels, scale = nn.MSELoss(reduction="sum"), torch.zeros_like(output), 0.5 / len(output)
    operator = library.KFACLinearOperator(
        module,
        loss,
        [parameters[name] for name in names],
        [(arguments[0], labels)],
        check_deterministic=False,
        seed=key,
        fisher_type={"sampled": "mc", "exact": "type-2"}[fisher],
        num_per_example_loss_terms=1,
        separate_weight_and_bias=False,
        num_data=len(output),
    )
    with isolated_rng(learner.device), torch.enable_grad():
        seed_global(learner.device, key)
        operator.compute_kronecker_factors()
    found = operator.state_dict()
    inputs, outputs = found["input_covariances"], found["gradient_covariances"]
    return {f"A/{name}": inputs[name] for name in layers} | {f"G/{name}": outputs[name] * scale for name in layers}


def load_curvlinops() -> Any:
    """The library, or how to get it."""
    try:
        with warnings.catch_warnings():
            # A package that it imports compiles with torch.jit, which PyTorch has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("curvlinops")
    except ImportError:
        raise WarpgradError(
            "KFAC with curvlinops needs that package: pip install 'warpgrad[kfac]', or use our own (method kfac)."
        ) from None

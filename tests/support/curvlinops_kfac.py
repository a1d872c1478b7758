"""KFAC with the factors of curvlinops, an independent library: what ours are checked against.

It takes the mean over a convolution's locations for A and the sum for G, we the other way round. A ⊗ G is the same, and
so is a damped step, for damping is divided by the ratio of their sizes.
"""

from __future__ import annotations

import importlib
import warnings

import torch
from torch import Tensor, nn

from warpgrad.adaptation.base import Point
from warpgrad.baselines.kfac import KFACAdaptation, Seen, parameter_name
from warpgrad.keys import fold, isolated_rng, seed_global
from warpgrad.tensors import Tensors

with warnings.catch_warnings():
    # A package that it imports compiles with torch.jit, which PyTorch has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    curvlinops = importlib.import_module("curvlinops")


class LibraryKFAC(KFACAdaptation):
    """Our adaptation, with A and G estimated by the library over labels of the model's own."""

    def factors(self, point: Point, seen: Seen, loss: Tensor) -> Tensors:
        learner, settings = self.learner, self.settings
        key = fold(self.key, point.k, "fisher")
        output = seen.final[-1]
        module = learner.adapted(point.theta, point.buffers)
        for child, own in zip(module.modules(), learner.module.modules(), strict=True):
            child.training = own.training
        parameters = dict(module.named_parameters())
        names = [
            parameter_name(name, local) for name, layer in self.layers.items() for local, _ in layer.named_parameters()
        ]
        if settings.likelihood == "categorical":
            criterion: nn.Module = nn.CrossEntropyLoss()
            labels = torch.zeros(len(output), dtype=torch.long, device=output.device)
            scale = 1.0
        else:
            # Its Gaussian has half our variance, and its sum is ours times the number of examples.
            criterion, labels, scale = nn.MSELoss(reduction="sum"), torch.zeros_like(output), 0.5 / len(output)
        operator = curvlinops.KFACLinearOperator(
            module,
            criterion,
            [parameters[name] for name in names],
            [(seen.arguments[-1][0], labels)],
            check_deterministic=False,
            seed=key,
            fisher_type={"sampled": "mc", "exact": "type-2"}[settings.fisher],
            num_per_example_loss_terms=1,
            separate_weight_and_bias=False,
            num_data=len(output),
        )
        with isolated_rng(learner.device), torch.enable_grad():
            seed_global(learner.device, key)
            operator.compute_kronecker_factors()
        found = operator.state_dict()
        inputs, outputs = found["input_covariances"], found["gradient_covariances"]
        return {f"A/{name}": inputs[name] for name in self.layers} | {
            f"G/{name}": outputs[name] * scale for name in self.layers
        }

"""Online elastic weight consolidation: the classical answer to forgetting, as a baseline for the continual experiment.

When a sub-task ends at θ, the anchor moves there, θ* ← θ, and the Fisher information of the model's predictions on
the data of that sub-task joins a running sum, F ← γF + F_t. Later steps descend

    L_task(θ) + λ/2 Σ_j F_j (θ_j − θ*_j)²

F_t is the diagonal of the true Fisher, E_x E_{y ~ p(y|x,θ)} [∂ log p(y|x,θ) / ∂θ]², with the inner expectation in
closed form: Σ_o (∂f_o/∂θ)² for squared errors (unit variance), Σ_c p_c (∂ log p_c/∂θ)² for classes. No targets needed.

Warning: an explicit step on the quadratic is stable only while αλF_j < 2. So the penalty's part of the step is taken
implicitly: θ_{k+1} minimises ½‖θ − (θ_k − α∇L_task)‖² + α·penalty(θ), which never overshoots, whatever λ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from warpgrad.adaptation.base import Adaptation, Point, Transition
from warpgrad.baselines.kfac import Likelihood
from warpgrad.errors import WarpgradError, require
from warpgrad.rules import SGD
from warpgrad.tensors import Tensors, detached

_ANCHOR, _FISHER = "ewc/anchor/", "ewc/fisher/"


def fisher_diagonal(
    predict: Callable[[Tensors, Tensor], Tensor], theta: Mapping[str, Tensor], inputs: Tensor, likelihood: Likelihood
) -> Tensors:
    """Compute the diagonal of the Fisher information at θ, averaged over `inputs` [n, …].

    `predict(θ, inputs)` returns [n, outputs].

    Memory: one copy of θ per example and output.
    """

    def roots(own_theta: Tensors, example: Tensor) -> Tensor:
        """Return r_o such that Σ_o (∂r_o/∂θ)² is the Fisher diagonal of one example."""
        output = predict(own_theta, example[None])[0].flatten()
        if likelihood == "gaussian":
            return output
        logs = torch.log_softmax(output, dim=0)
        return logs.exp().detach().sqrt() * logs

    jacobians = vmap(jacrev(roots), in_dims=(None, 0))(dict(theta), inputs)
    return {name: value.square().sum(dim=1).mean(dim=0) for name, value in jacobians.items()}


class OnlineEWC:
    """Adaptation steps with consolidation. Anchor and Fisher travel in the rule state of the points.

        stepper = OnlineEWC(adaptation, strength=100.0, ends=range(20, 100, 20))
        point = stepper.start()
        point = stepper.step(point).after

    Example:
        >>> ewc = baselines.OnlineEWC(wg.Adaptation(learner, wg.SGD(0.1), task, key=0), strength=10.0, ends=[2])
        >>> [point.k for point in Trajectory(ewc, steps=3).points()]
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        adaptation: Adaptation,
        *,
        strength: float,
        ends: Sequence[int],
        decay: float = 1.0,
        likelihood: Likelihood = "gaussian",
    ) -> None:
        """
        Args:
            adaptation: The task or the stack of tasks; its rule is plain SGD, its batches are (inputs, targets).
            strength: λ.
            ends: The steps k before which a sub-task has ended; F_t is taken on all its adaptation batches.
            decay: γ.
            likelihood: `gaussian` for squared errors, `categorical` for logits of classes.
        """
        rule = adaptation.rule
        if not isinstance(rule, SGD) or rule.momentum or rule.weight_decay or rule.meta:
            raise WarpgradError("OnlineEWC takes plain gradient steps: give it SGD(lr) and nothing else.")
        require(
            strength >= 0 and 0 <= decay <= 1,
            f"OnlineEWC(strength={strength}, decay={decay}): λ must be ≥ 0 and γ within [0, 1].",
        )
        require(
            likelihood in ("gaussian", "categorical"),
            f"likelihood={likelihood!r} is unknown; choose gaussian or categorical.",
        )
        self.adaptation = adaptation
        self.strength, self.decay = strength, decay
        self.ends = tuple(sorted(set(ends)))
        self.likelihood: Likelihood = likelihood
        self._lr = rule.lr

    def start(self) -> Point:
        point = self.adaptation.start()
        zero = {name: torch.zeros_like(value) for name, value in point.theta.items()}
        return Point(point.k, point.theta, point.buffers, {**point.state, **_stored(point.theta, zero)})

    def step(self, point: Point) -> Transition:
        """Take the step from θ_k to θ_{k+1}, after consolidation if a sub-task has ended."""
        anchor, fisher = _part(point.state, _ANCHOR), _part(point.state, _FISHER)
        if point.k in self.ends:
            fresh = self._fisher(point)
            anchor, fisher = point.theta, {name: self.decay * fisher[name] + fresh[name] for name in fisher}
        inner = self.adaptation.inner(point)
        with torch.no_grad():
            theta, _ = self.adaptation.update(inner.gradient, {}, point.theta)
            for name, value in theta.items():
                pull = self._lr * self.strength * fisher[name]
                theta[name] = (value + pull * anchor[name]) / (1.0 + pull)
        return self.adaptation.transition(point, inner, theta, _stored(anchor, fisher))

    def _fisher(self, point: Point) -> Tensors:
        """Compute F_t, the mean over the adaptation batches of the sub-task that ends before step k."""
        assert isinstance(point.k, int)
        begin = max((end for end in self.ends if end < point.k), default=0)
        total: Tensors = {}
        for k in range(begin, point.k):
            for name, value in self._batch_fisher(point, k).items():
                total[name] = total[name] + value if name in total else value
        return {name: value / (point.k - begin) for name, value in total.items()}

    def _batch_fisher(self, point: Point, k: int) -> Tensors:
        adaptation = self.adaptation

        def one(theta: Tensors, buffers: Tensors, inputs: Tensor) -> Tensors:
            def predict(own_theta: Tensors, examples: Tensor) -> Tensor:
                output: Tensor = adaptation.learner.bind(own_theta, buffers, training=False)(examples)
                return output

            return fisher_diagonal(predict, theta, inputs, self.likelihood)

        tasks: Sequence[Any] = getattr(adaptation, "tasks", [adaptation.task])
        inputs = adaptation.gather([{"inputs": task.adapt_batch(k)[0]} for task in tasks])["inputs"]
        return detached(adaptation.per_task(one, point.theta, point.buffers, inputs))


def _stored(anchor: Mapping[str, Tensor], fisher: Mapping[str, Tensor]) -> Tensors:
    return {
        **{f"{_ANCHOR}{name}": value for name, value in anchor.items()},
        **{f"{_FISHER}{name}": value for name, value in fisher.items()},
    }


def _part(state: Mapping[str, Tensor], prefix: str) -> Tensors:
    """Return the anchor or the Fisher information, by parameter."""
    return {path.removeprefix(prefix): value for path, value in state.items() if path.startswith(prefix)}

"""Online elastic weight consolidation against closed forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.baselines.ewc import OnlineEWC, fisher_diagonal
from warpgrad.errors import WarpgradError
from warpgrad.experiments.continual.families import half_squared_error
from warpgrad.keys import generator
from warpgrad.tasks.continual import ContinualTask, TensorSubTask
from warpgrad.tensors import Tensors


def affine(theta: Tensors, inputs: Tensor) -> Tensor:
    return inputs @ theta["weight"].T + theta["bias"]


def draws(*shape: int, name: str = "ewc") -> Tensor:
    return torch.randn(*shape, generator=generator(name, *shape), dtype=torch.float64)


def sequence(seed: int = 0, batch_size: int = 4) -> ContinualTask:
    parts = []
    for place in range(3):
        inputs = draws(6, 2, name=f"inputs {seed} {place}")
        parts.append(TensorSubTask((inputs, draws(6, 1, name=f"targets {seed} {place}"))))
    return ContinualTask(parts, half_squared_error, steps_per_subtask=5, batch_size=batch_size, seed=seed)


def tanh_net() -> wg.Learner:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return wg.Learner(module, warp=(), start={"*": "fixed"})


# The Fisher information


def test_fisher_of_a_linear_regression() -> None:
    """f = Wx + b with unit variance: F is E[x_j²] for W_oj and 1 for b_o, whatever W, b and the targets."""
    inputs = draws(9, 3)
    found = fisher_diagonal(affine, {"weight": draws(2, 3), "bias": draws(2)}, inputs, "gaussian")
    torch.testing.assert_close(found["weight"], inputs.square().mean(dim=0).expand(2, 3))
    torch.testing.assert_close(found["bias"], torch.ones(2, dtype=torch.float64))


def test_fisher_of_a_linear_classifier() -> None:
    """Softmax of Wx + b: F is E[p_c (1 − p_c) x_j²] for W_cj."""
    theta, inputs = {"weight": draws(4, 3), "bias": draws(4)}, draws(9, 3)
    probabilities = torch.softmax(affine(theta, inputs), dim=1)
    spread = probabilities * (1.0 - probabilities)
    found = fisher_diagonal(affine, theta, inputs, "categorical")
    torch.testing.assert_close(found["weight"], (spread[:, :, None] * inputs.square()[:, None, :]).mean(dim=0))
    torch.testing.assert_close(found["bias"], spread.mean(dim=0))


def test_fisher_is_the_variance_of_the_score_under_the_model() -> None:
    """Against its definition: Σ_c p_c (∂ log p_c)², one backward pass at a time, through a non-linear net."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = draws(5, 3)
    expected = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for example in inputs:
        for label in range(3):
            logs = F.log_softmax(module(example), dim=0)
            slopes = torch.autograd.grad(logs[label], list(module.parameters()))
            for total, slope in zip(expected.values(), slopes, strict=True):
                total += logs[label].detach().exp() * slope.square() / len(inputs)

    def predict(theta: Tensors, examples: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(module, theta, (examples,))
        return output

    theta = {name: value.detach() for name, value in module.named_parameters()}
    found = fisher_diagonal(predict, theta, inputs, "categorical")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


# The steps


def test_before_the_first_switch_ewc_is_plain_descent() -> None:
    plain = Adaptation(tanh_net(), wg.SGD(0.1), sequence(), 0)
    careful = OnlineEWC(plain, strength=50.0, ends=(5, 10))
    expected, found = plain.start(), careful.start()
    for _ in range(5):
        expected, found = plain.step(expected).after, careful.step(found).after
    for name, value in expected.theta.items():
        assert torch.equal(found.theta[name], value)


def test_a_step_is_the_proximal_step_of_the_penalty() -> None:
    """θ' = (θ − α∇L + αλF θ*) / (1 + αλF), with θ* and F as they were when the sub-task ended."""
    task, lr, strength = sequence(), 0.1, 7.0
    plain = Adaptation(tanh_net(), wg.SGD(lr), task, 0)
    careful = OnlineEWC(plain, strength=strength, ends=(5, 10))
    point = careful.start()
    for _ in range(5):
        point = careful.step(point).after
    anchor = point.theta

    def predict(theta: Tensors, examples: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(plain.learner.module, theta, (examples,))
        return output

    seen = torch.cat([task.adapt_batch(k)[0] for k in range(5)])
    fisher = fisher_diagonal(predict, anchor, seen, "gaussian")
    for k in (5, 6, 7):
        slopes = plain.inner(point).gradient
        after = careful.step(point).after
        for name, value in point.theta.items():
            pull = lr * strength * fisher[name]
            expected = (value - lr * slopes[name] + pull * anchor[name]) / (1.0 + pull)
            torch.testing.assert_close(after.theta[name], expected, rtol=1e-12, atol=1e-14)
            if k > 5:
                # Stationarity of ½‖θ − (θ_k − α∇L)‖² + α λ/2 Σ F (θ − θ*)².
                slope = after.theta[name] - (value - lr * slopes[name]) + pull * (after.theta[name] - anchor[name])
                assert slope.abs().max() < 1e-14
        point = after


def test_two_sub_tasks_end_at_the_minimum_of_loss_and_penalty() -> None:
    """y = θx: with F = E[x²] after the first sub-task, the second ends at (E[xy] + λF θ*) / (E[x²] + λF)."""
    first, second = (draws(6, 1, name="x1"), draws(6, 1, name="y1")), (draws(6, 1, name="x2"), draws(6, 1, name="y2"))

    class Whole(TensorSubTask):
        """Every batch is all there is."""

        def draw(self, split: str, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
            return self.test()

    task = ContinualTask([Whole(first), Whole(second)], half_squared_error, steps_per_subtask=400, batch_size=6)
    model = wg.Learner(nn.Linear(1, 1, bias=False).double(), warp=())
    careful = OnlineEWC(Adaptation(model, wg.SGD(0.3), task, 0), strength=2.5, ends=(400,))
    point = careful.start()
    for k in range(800):
        point = careful.step(point).after
        if k == 399:
            start = point.theta["weight"].item()
    fisher = first[0].square().mean()
    assert start == pytest.approx(float((first[0] * first[1]).mean() / fisher), rel=1e-10)
    x, y = second
    expected = ((x * y).mean() + 2.5 * fisher * start) / (x.square().mean() + 2.5 * fisher)
    assert point.theta["weight"].item() == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("decay", [1.0, 0.3])
def test_the_running_fisher_decays_by_gamma(decay: float) -> None:
    """A linear model's F does not depend on θ: after two sub-tasks it is γ E₁[x²] + E₂[x²]."""
    task = sequence()
    model = wg.Learner(nn.Linear(2, 1).double(), warp=())
    careful = OnlineEWC(Adaptation(model, wg.SGD(0.1), task, 0), strength=1.0, ends=(5, 10), decay=decay)
    point = careful.start()
    for _ in range(11):
        point = careful.step(point).after
    means = [torch.cat([task.adapt_batch(k)[0] for k in range(5 * t, 5 * t + 5)]).square().mean(dim=0) for t in (0, 1)]
    torch.testing.assert_close(point.state["ewc/fisher/weight"][0], decay * means[0] + means[1])
    torch.testing.assert_close(point.state["ewc/fisher/bias"], torch.tensor([decay + 1.0], dtype=torch.float64))


def test_infinite_strength_keeps_the_anchor_and_stays_finite() -> None:
    model = wg.Learner(nn.Linear(2, 1).double(), warp=())
    careful = OnlineEWC(Adaptation(model, wg.SGD(0.1), sequence(), 0), strength=1e12, ends=(5, 10))
    point = careful.start()
    for _ in range(5):
        point = careful.step(point).after
    anchor = point.theta
    for _ in range(5):
        point = careful.step(point).after
    for name, value in anchor.items():
        torch.testing.assert_close(point.theta[name], value, rtol=0, atol=1e-9)


def test_stacked_tasks_take_the_steps_of_the_loop() -> None:
    tasks, model, rule = [sequence(seed) for seed in (0, 1)], tanh_net(), wg.SGD(0.1)
    together = OnlineEWC(BatchedAdaptation(model, rule, tasks, [0, 0]), strength=20.0, ends=(5, 10), decay=0.9)
    alone = [OnlineEWC(Adaptation(model, rule, task, 0), strength=20.0, ends=(5, 10), decay=0.9) for task in tasks]
    stacked, singles = together.start(), [one.start() for one in alone]
    for _ in range(15):
        stacked = together.step(stacked).after
        singles = [one.step(point).after for one, point in zip(alone, singles, strict=True)]
    for place, single in enumerate(singles):
        for tensors, expected in ((stacked.theta, single.theta), (stacked.state, single.state)):
            for name, value in expected.items():
                torch.testing.assert_close(tensors[name][place], value, rtol=1e-11, atol=1e-13)


def test_consolidation_looks_at_the_sub_task_that_ends_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = sequence(), list[int]()
    draw = ContinualTask.adapt_batch

    def spy(self: ContinualTask, k: int) -> tuple[Tensor, Tensor]:
        asked.append(k)
        return draw(self, k)

    monkeypatch.setattr(ContinualTask, "adapt_batch", spy)
    careful = OnlineEWC(Adaptation(tanh_net(), wg.SGD(0.1), task, 0), strength=1.0, ends=(5, 10))
    point = careful.start()
    for k in range(12):
        asked.clear()
        point = careful.step(point).after
        assert sorted(asked) == ([*range(k - 5, k), k] if k in (5, 10) else [k])


def test_what_ewc_cannot_do_is_refused() -> None:
    model, task = tanh_net(), sequence()
    with pytest.raises(WarpgradError, match="plain gradient steps"):
        OnlineEWC(Adaptation(model, wg.SGD(0.1, momentum=0.9), task, 0), strength=1.0, ends=())
    adaptation = Adaptation(model, wg.SGD(0.1), task, 0)
    with pytest.raises(WarpgradError, match="λ must be ≥ 0"):
        OnlineEWC(adaptation, strength=-1.0, ends=())
    with pytest.raises(WarpgradError, match="likelihood='poisson' is unknown"):
        OnlineEWC(adaptation, strength=1.0, ends=(), likelihood="poisson")  # type: ignore[arg-type]

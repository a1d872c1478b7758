"""The geometry of Eqs. 6-10: closed forms, finite differences, and the Jacobians that warp-layers really have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import warpgrad as wg
from warpgrad.adaptation import Adaptation
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.geometry import (
    Omega,
    condition_number,
    flattened,
    ideal_step,
    invert,
    is_positive_definite,
    jacobian,
    linear_omega,
    metric_inverse,
    pushed_forward,
    taylor_error,
    unflattened,
    warp_jacobians,
    warp_jacobians_along,
    warp_layers,
)
from warpgrad.keys import generator


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def draw(*shape: int, key: int | str = 0) -> Tensor:
    return torch.randn(*shape, generator=generator("geometry", key))


def scatter(points: int, key: int | str = 0) -> Tensor:
    """Points of the square [-3, 3]², where the synthetic surfaces live."""
    return 6 * torch.rand(points, 2, generator=generator("geometry", key)) - 3


def residual_omega(size: int, scale: float, key: int = 0, hidden: int = 30) -> Omega:
    """θ + g(θ) with a two-layer tanh g; the larger the scale, the more it folds."""
    first, shift = scale * draw(hidden, size, key=key), scale * draw(hidden, key=key + 1)
    second = scale * draw(size, hidden, key=key + 2) / hidden**0.5
    return lambda theta: theta + second @ torch.tanh(first @ theta + shift)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def hooks(module: nn.Module) -> int:
    return sum(len(child._forward_hooks) + len(child._forward_pre_hooks) for child in module.modules())


# Eqs. 7-10 for an explicit Ω.


@pytest.mark.parametrize("rows", [2, 4, 5])
def test_jacobian_is_that_of_central_differences(rows: int) -> None:
    out = draw(rows, 4, key="out")
    warp = residual_omega(4, 0.7)

    def omega(theta: Tensor) -> Tensor:
        return out @ warp(theta)

    theta, step = draw(4, key="at"), 1e-5
    columns = [(omega(theta + step * unit) - omega(theta - step * unit)) / (2 * step) for unit in torch.eye(4)]
    found = jacobian(omega, theta)
    assert found.shape == (rows, 4)
    close(found, torch.stack(columns, dim=1), 1e-9)


def test_metric_is_differentiable_in_what_omega_is_made_of() -> None:
    projection = draw(3, 3).requires_grad_()
    trace = metric_inverse(lambda theta: projection @ theta, draw(3, key="at")).trace()
    (slope,) = torch.autograd.grad(trace, projection)
    close(slope, 2 * projection.detach(), 1e-14)  # d tr(T Tᵀ) / dT = 2 T


def test_metric_of_a_non_degenerate_warp_is_symmetric_positive_definite() -> None:
    omega = residual_omega(3, 0.3)
    points = draw(50, 3, key="points")
    metrics = vmap(lambda theta: metric_inverse(omega, theta))(points)
    assert (metrics - metrics.mT).abs().max() < 1e-15
    assert is_positive_definite(metrics).all()
    derivatives = vmap(jacrev(omega))(points)
    close(condition_number(metrics), torch.linalg.cond(derivatives) ** 2, 1e-10)
    # v ↦ vᵀ G⁻¹ v is a squared length for any v.
    directions = draw(50, 3, key="directions")
    assert (torch.einsum("ni,nij,nj->n", directions, metrics, directions) > 0).all()


def test_condition_number_of_a_known_spectrum() -> None:
    stretch = torch.tensor([1.0, 2.0, 3.0])
    metric = metric_inverse(lambda theta: stretch * theta, torch.zeros(3))
    assert torch.equal(metric, torch.diag(torch.tensor([1.0, 4.0, 9.0])))
    assert condition_number(metric).item() == 9.0
    assert condition_number(metric.inverse()).item() == pytest.approx(9.0, rel=1e-14)


DEGENERATE: dict[str, tuple[Omega, Tensor]] = {
    "a projection": (lambda theta: torch.stack([theta.sum(), 2 * theta.sum()]), torch.ones(2)),
    "a fold": (lambda theta: theta * theta, torch.tensor([0.0, 1.0])),
    "onto a curved surface": (lambda theta: torch.cat([theta, theta.square().sum(0, True)]), torch.ones(2)),
    "a constant": (lambda theta: torch.ones(2) + 0 * theta, torch.ones(2)),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_warp_is_detected(name: str, dtype: torch.dtype) -> None:
    omega, theta = DEGENERATE[name]
    metric = metric_inverse(lambda at: omega(at).to(dtype), theta.to(dtype))
    assert metric.dtype == dtype
    assert not is_positive_definite(metric)
    assert condition_number(metric) > 0.01 / torch.finfo(dtype).eps


def test_positive_definiteness_asks_for_symmetry_and_keeps_its_tolerance() -> None:
    assert not is_positive_definite(torch.tensor([[2.0, 0.5], [0.0, 2.0]]))
    assert not is_positive_definite(torch.diag(torch.tensor([1.0, -1.0])))
    thin = torch.diag(torch.tensor([1.0, 1e-6]))
    assert is_positive_definite(thin)
    assert not is_positive_definite(thin, tolerance=1e-5)
    stacked = torch.stack([thin, torch.eye(2), -torch.eye(2)])
    assert is_positive_definite(stacked, tolerance=1e-5).tolist() == [False, True, False]
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        is_positive_definite(thin * torch.nan)


def a_loss(gamma: Tensor) -> Tensor:
    return torch.cos(gamma).prod() + gamma.square().sum() + gamma.exp().sum()


def test_push_forward_is_the_preconditioned_gradient() -> None:
    omega, theta = residual_omega(3, 0.8), draw(3, key="at")
    pushed = pushed_forward(a_loss, omega, theta)
    slope = torch.func.grad(a_loss)(omega(theta))
    close(pushed.gamma, omega(theta), 1e-15)
    close(pushed.delta_theta, jacobian(omega, theta).mT @ slope, 1e-13)  # Eq. 7
    close(pushed.delta_gamma, metric_inverse(omega, theta) @ slope, 1e-12)  # Eq. 8
    assert pushed.delta_gamma @ slope > 0
    close(ideal_step(a_loss, omega, theta, 0.1), omega(theta) - 0.1 * metric_inverse(omega, theta) @ slope, 1e-12)


def fitted_slope(error: Callable[[float], Tensor]) -> float:
    """The power of α that the error falls as, by least squares over two decades."""
    alphas = torch.logspace(-3, -5, 9)
    logs = torch.stack([error(float(alpha)).abs().log() for alpha in alphas])
    x = alphas.log() - alphas.log().mean()
    return float((x @ (logs - logs.mean())) / (x @ x))


def test_taylor_error_falls_as_the_square_of_the_step() -> None:
    omega, theta = residual_omega(3, 0.8), draw(3, key="at")
    assert fitted_slope(lambda alpha: taylor_error(a_loss, omega, theta, alpha)) == pytest.approx(2, abs=0.05)

    def without_the_metric(alpha: float) -> Tensor:
        pushed = pushed_forward(a_loss, omega, theta)
        plain = pushed.gamma - alpha * torch.func.grad(a_loss)(pushed.gamma)
        return a_loss(omega(theta - alpha * pushed.delta_theta)) - a_loss(plain)

    # A step under any other metric is off in the first order: the test can tell.
    assert fitted_slope(without_the_metric) == pytest.approx(1, abs=0.05)


def test_taylor_error_of_an_affine_warp_is_rounding() -> None:
    projection, shift = draw(3, 3), draw(3, key="shift")
    error = taylor_error(a_loss, lambda theta: projection @ theta + shift, draw(3, key="at"), 0.05)
    assert error.abs() < 1e-13


class Vector(nn.Module):
    """γ = T θ: a task parameter that is a plain vector, behind a linear warp-layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(draw(size, key="theta"))
        self.warp = wg.Warp(nn.Linear(size, size, bias=False))

    def forward(self) -> Tensor:
        return self.warp(self.theta)


class Quadratic(wg.Task):
    """L(γ) = ½ γᵀAγ − bᵀγ."""

    def __init__(self, size: int) -> None:
        root = draw(size, size, key="root")
        self.matrix = root @ root.mT / size + torch.eye(size)
        self.target = draw(size, key="target")

    def adapt_batch(self, k: int) -> None:
        return None

    def meta_batch(self, k: int) -> None:
        return None

    def loss(self, forward: wg.Forward, batch: None) -> Tensor:
        gamma = forward()
        return 0.5 * gamma @ self.matrix @ gamma - self.target @ gamma


def test_linear_warp_takes_the_preconditioned_step_on_a_quadratic() -> None:
    learner, task, alpha = wg.Learner(Vector(6)), Quadratic(6), 0.05
    projection = learner.phi["warp.weight"].detach()
    adaptation = Adaptation(learner, wg.SGD(alpha), task, key=0)
    point = adaptation.start()
    gamma = projection @ point.theta["theta"]
    for _ in range(5):
        point = adaptation.step(point).after
        gamma = gamma - alpha * projection @ projection.mT @ (task.matrix @ gamma - task.target)
        close(projection @ point.theta["theta"], gamma, 1e-12)
    assert (gamma - projection @ learner.theta0["theta"].detach()).norm() > 0.1
    # A vector that passes through a warp-layer is one example, and D_x ω = T.
    (found,) = warp_jacobians(learner, point.theta, point.buffers, ()).values()
    close(found, projection.unsqueeze(0), 1e-15)


# Eq. 6 for warp-layers in a model.


class Residual(nn.Module):
    """x + V tanh(U x): a non-linear warp-layer."""

    def __init__(self, size: int, hidden: int = 7) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Layer(nn.Sequential):
    """h(x) = tanh(W x + b)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs), nn.Tanh())


SIZES = (3, 5, 4, 2)


def interleaved() -> nn.Sequential:
    """ω³ ∘ h³ ∘ ω² ∘ h² ∘ ω¹ ∘ h¹."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers += [Layer(inputs, outputs), wg.Warp(Residual(outputs))]
    return nn.Sequential(*layers)


def regression(examples: int = 6, *, inputs: int = 3, outputs: int = 2, batch_size: int | None = None):
    x, y = draw(examples, inputs, key="x"), draw(examples, outputs, key="y")
    return wg.SupervisedTask(x, y, F.mse_loss, batch_size=batch_size)


def test_gradient_of_every_task_layer_is_the_product_of_jacobians() -> None:
    model, task = interleaved(), regression()
    learner = wg.Learner(model)
    adaptation = Adaptation(learner, wg.SGD(0.1), task, key=0)
    point = adaptation.start()
    gradient = adaptation.inner(point).gradient
    inputs, targets = task.adapt_batch(0)

    explicit = {name: torch.zeros_like(value) for name, value in point.theta.items()}
    for x, y in zip(inputs, targets, strict=True):
        received = []
        for module in model:
            received.append(x)
            x = module(x).detach()
        row = 2 * (x - y) / y.numel() / len(inputs)  # ∇ℓ of the mean squared error
        for place in (4, 2, 0):
            task_layer, warp_layer = model[place], model[place + 1]
            row = row @ jacrev(warp_layer)(received[place + 1])  # · D_x ω
            weights = dict(task_layer.named_parameters())

            def h(values: dict[str, Tensor], layer=task_layer, x=received[place]) -> Tensor:
                return functional_call(layer, values, (x,))

            for name, derivative in jacrev(h)(weights).items():  # · D_θ h
                explicit[f"{place}.{name}"] += torch.tensordot(row, derivative.detach(), dims=1)
            row = row @ jacrev(task_layer)(received[place])  # · D_x h

    assert set(gradient) == set(explicit) == set(learner.theta0)
    for name, value in gradient.items():
        assert value.abs().max() > 1e-4
        close(value, explicit[name], 1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_warp_jacobians_are_those_of_the_layers_at_their_inputs(training: bool) -> None:
    model = interleaved()
    learner = wg.Learner(model)
    assert list(warp_layers(learner)) == ["1", "3", "5"]
    theta = {name: value + draw(*value.shape, key=name) for name, value in learner.start(0).items()}
    x = draw(6, 3, key="x")
    found = warp_jacobians(learner, theta, learner.buffers(), (x,), training=training)
    moved = copy.deepcopy(model)
    moved.load_state_dict(theta, strict=False)
    for place, name in ((1, "1"), (3, "3"), (5, "5")):
        received = moved[:place](x).detach()
        expected = vmap(jacrev(moved[place]))(received).detach()
        assert found[name].shape == (6, SIZES[place // 2 + 1], SIZES[place // 2 + 1])
        assert not found[name].requires_grad
        close(found[name], expected, 1e-13)
    only = warp_jacobians(learner, theta, learner.buffers(), (x,), layers=["3"], training=training)
    assert list(only) == ["3"]
    assert torch.equal(only["3"], found["3"])


def warped_net(*warps: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), wg.Warp(warps[0]), nn.Tanh(), nn.Linear(4, 4), wg.Warp(warps[1]))


def test_linear_warps_jacobian_depends_on_neither_data_nor_step_and_a_nonlinear_ones_on_both() -> None:
    task = regression(outputs=4, batch_size=3)
    linear = wg.Learner(warped_net(nn.Linear(4, 4), nn.Linear(4, 4, bias=False)))
    seen = 0
    for _, found in warp_jacobians_along(linear, wg.SGD(0.2), task, steps=6):
        for name, value in found.items():
            for example in value:
                close(example, linear.phi[f"{name}.weight"].detach(), 1e-15)
                seen += 1
    assert seen == 6 * 2 * 3

    nonlinear = wg.Learner(warped_net(Residual(4), Residual(4)))
    adaptation = Adaptation(nonlinear, wg.SGD(0.2), task, key=0)
    start = adaptation.start()
    after = adaptation.step(start).after
    x = draw(2, 3, key="probe")
    here = warp_jacobians(nonlinear, start.theta, start.buffers, (x,))
    there = warp_jacobians(nonlinear, after.theta, start.buffers, (x,))
    path = dict(warp_jacobians_along(nonlinear, wg.SGD(0.2), task, steps=6))
    for name in ("1", "4"):
        assert (here[name][0] - here[name][1]).abs().max() > 1e-2  # other data, the same θ
        assert (here[name] - there[name]).abs().max() > 1e-3  # the same data, another θ
        assert (path[0][name] - path[5][name]).abs().max() > 1e-2


class Watched(wg.SupervisedTask):
    """A task that counts the hooks in a model while its loss is taken."""

    module: nn.Module

    def loss(self, forward: wg.Forward, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.watched = [*getattr(self, "watched", []), hooks(self.module)]
        return super().loss(forward, batch)


def test_jacobians_along_a_task_are_those_at_its_points_and_leave_adaptation_alone() -> None:
    learner = wg.Learner(warped_net(Residual(4), nn.Sequential(nn.Dropout(0.5), Residual(4))))
    task = Watched(draw(6, 3, key="x"), draw(6, 4, key="y"), F.mse_loss, batch_size=3)
    task.module = learner.module
    rule = wg.SGD(0.2, momentum=0.9)
    plain = Adaptation(learner, rule, task, key=7)
    points = [plain.start()]
    for _ in range(5):
        points.append(plain.step(points[-1]).after)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    path = list(warp_jacobians_along(learner, rule, task, 5, every=2, key=7))
    assert torch.equal(torch.get_rng_state(), state)
    assert [k for k, _ in path] == [0, 2, 4]
    assert task.watched == [0] * 5 + [4, 0, 4, 0, 4]  # two hooks for each of two layers, only where they are due
    for k, found in path:
        point = points[k]
        inputs, _ = task.adapt_batch(k)
        mask_key = wg.keys.fold(7, k, "adapt_batch")
        expected = warp_jacobians(learner, point.theta, point.buffers, (inputs,), key=mask_key)
        assert all(torch.equal(found[name], expected[name]) for name in found)
    assert hooks(learner.module) == 0
    with pytest.raises(WarpgradError, match="at least 1 step"):
        next(warp_jacobians_along(learner, rule, task, 5, every=0))
    with pytest.raises(WarpgradError, match="steps=0"):
        next(warp_jacobians_along(learner, rule, task, 0))


def test_dropout_is_differentiated_with_the_masks_of_the_call() -> None:
    learner = wg.Learner(nn.Sequential(nn.Linear(3, 8), wg.Warp(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8)))))
    theta, x = learner.start(0), draw(5, 3, key="x")
    outputs = learner.bind(theta, {}, key=3)(x).detach()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with torch.no_grad():  # whatever mode the caller is in
        (found,) = warp_jacobians(learner, theta, {}, (x,), key=3).values()
    assert torch.equal(torch.get_rng_state(), state)
    received = F.linear(x, theta["0.weight"], theta["0.bias"])
    bias = learner.phi["1.1.bias"].detach()
    # T M x + t is linear given the mask M, so the Jacobian must give the very outputs of the forward.
    close(torch.einsum("noi,ni->no", found, received) + bias, outputs, 1e-13)
    assert (found == 0).all(1).any()


def test_batch_norm_in_a_warp_gives_each_examples_own_block() -> None:
    warp = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    learner = wg.Learner(nn.Sequential(nn.Linear(3, 4), wg.Warp(warp)))
    theta, buffers, x = learner.start(0), learner.buffers(), draw(5, 3, key="x")
    (found,) = warp_jacobians(learner, theta, buffers, (x,)).values()
    received = F.linear(x, theta["0.weight"], theta["0.bias"])

    def by_hand(inputs: Tensor) -> Tensor:
        hidden = F.linear(inputs, warp[0].weight, warp[0].bias)
        return torch.tanh(F.batch_norm(hidden, None, None, warp[1].weight, warp[1].bias, training=True))

    full = jacrev(by_hand)(received).detach()  # [example, out, example, in]
    close(found, torch.stack([full[i, :, i] for i in range(5)]), 1e-12)
    assert all(torch.equal(value, buffers[name]) for name, value in learner.buffers().items())
    # With the statistics of a task the examples no longer meet.
    moved = {name: value + 0.5 if value.is_floating_point() else value for name, value in buffers.items()}
    (found,) = warp_jacobians(learner, theta, moved, (x,), training=False).values()

    def at_test(one: Tensor) -> Tensor:
        hidden = F.linear(one, warp[0].weight, warp[0].bias)
        return torch.tanh((hidden - 0.5) / (1.5 + warp[1].eps) ** 0.5)

    close(found, vmap(jacrev(at_test))(received).detach(), 1e-12)


def test_convolutional_warp_is_flattened_per_example() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    learner = wg.Learner(nn.Sequential(nn.Conv2d(1, 2, 1), wg.Warp(conv)))
    x = draw(2, 1, 4, 4, key="x")
    (found,) = warp_jacobians(learner, learner.start(0), {}, (x,)).values()
    assert found.shape == (2, 3 * 16, 2 * 16)
    other = draw(2, 2, 4, 4, key="other")
    close((found @ other.flatten(1).unsqueeze(-1)).reshape(2, 3, 4, 4), conv(other).detach(), 1e-13)


class Recurrent(nn.Module):
    """A warp-layer called at every step, in a container without a forward of its own, and once without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.task = nn.Linear(4, 4)
        self.warps = nn.ModuleList([nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))])

    def forward(self, h: Tensor, steps: int) -> Tensor:
        with torch.no_grad():
            self.warps[0](h.clone())
        for _ in range(steps):
            h = self.warps[0](self.task(h))
        return h


def test_every_call_with_a_gradient_counts_and_layers_may_work_in_place() -> None:
    model = Recurrent()
    learner = wg.Learner(model, warp="warps")
    assert list(warp_layers(learner)) == ["warps.0"]
    h = draw(5, 4, key="h")
    (found,) = warp_jacobians(learner, learner.start(0), {}, (h, 3)).values()
    assert found.shape == (15, 4, 4)
    for call in found.split(5):
        received = model.task(h)
        close(call, (model.warps[0][1].weight * (received > 0).unsqueeze(1)).detach(), 1e-14)
        h = model.warps[0](received)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.task = nn.Linear(3, 3)
        self.warp = wg.Warp(nn.Linear(3, 3))
        self.fails = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.warp(self.task(x))
        if self.fails:
            raise KeyError("broken")
        return x


def test_hooks_are_gone_even_when_the_forward_raises() -> None:
    learner = wg.Learner(Failing())
    x = draw(2, 3)
    with pytest.raises(KeyError, match="broken"):
        warp_jacobians(learner, learner.start(0), {}, (x,))
    assert hooks(learner.module) == 0
    path = warp_jacobians_along(learner, wg.SGD(0.1), regression(outputs=3), steps=2)
    with pytest.raises(KeyError, match="broken"):
        next(path)
    assert hooks(learner.module) == 0
    learner.module.fails = False
    path = warp_jacobians_along(learner, wg.SGD(0.1), regression(outputs=3), steps=2)
    next(path)
    assert hooks(learner.module) == 0  # none is left while the caller works, nor if it never comes back
    with pytest.raises(WarpgradError, match="'task' is no warp-layer of the model; it has warp"):
        warp_jacobians(learner, learner.start(0), {}, (x,), layers=["warp", "task"])
    assert hooks(learner.module) == 0


class Odd(nn.Module):
    """Warp-layers that cannot be differentiated, one way each."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.task = nn.Linear(3, 3)
        self.warp = nn.Embedding(3, 3) if way == "integers" else nn.Linear(3, 3)
        if way == "loose":
            self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.task(x)
        if self.way == "integers":
            return x + self.warp(torch.arange(len(x)) % 3)
        if self.way == "bypassed":
            return F.linear(x, self.warp.weight)
        if self.way == "keyword":
            return self.warp(input=x)
        return self.warp(x) * getattr(self, "scale", 1.0)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("integers", "'warp' needs a floating-point tensor"),
        ("keyword", "'warp' needs a floating-point tensor"),
        ("bypassed", "'warp' was not called with gradients"),
        ("loose", "warp parameter 'scale' is in no module with warp parameters alone"),
    ],
)
def test_what_cannot_be_differentiated_is_said(way: str, message: str) -> None:
    learner = wg.Learner(Odd(way), task="task")
    with pytest.raises(WarpgradError, match=message):
        warp_jacobians(learner, learner.start(0), {}, (draw(4, 3),))
    assert hooks(learner.module) == 0


def test_a_warp_that_moves_the_batch_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), wg.Warp(nn.Sequential(nn.Linear(3, 3), nn.Flatten(0))))
    learner = wg.Learner(model)
    with pytest.raises(WarpgradError, match="'1' must return a tensor with the batch of its input first"):
        warp_jacobians(learner, learner.start(0), {}, (draw(4, 3),))


# The explicit Ω of linear warp-layers.


def linear_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 4),
        wg.Warp(nn.Linear(4, 5)),
        nn.Tanh(),
        nn.Sequential(nn.Linear(5, 4), wg.Warp(nn.Linear(4, 4, bias=False)), nn.LayerNorm(4)),
        nn.Linear(4, 3, bias=False),
        wg.Warp(nn.Linear(3, 3, bias=False)),
        nn.Tanh(),
        nn.Linear(3, 2),
    )


def without_warps() -> nn.Sequential:
    """The same names with warp-layers replaced by the identity; the first layer has the size of T W."""
    model = linear_model()
    model[0], model[1], model[3][1], model[5] = nn.Linear(3, 5), nn.Identity(), nn.Identity(), nn.Identity()
    return model


def test_warped_model_at_theta_is_the_plain_model_at_omega_of_theta() -> None:
    learner, plain = wg.Learner(linear_model()), without_warps()
    omega = linear_omega(learner)
    x = draw(7, 3, key="x")
    for key in range(3):
        theta = {name: draw(*value.shape, key=f"{name}{key}") for name, value in learner.theta0.items()}
        gamma = unflattened(omega(flattened(theta)), dict(plain.named_parameters()))
        close(functional_call(plain, gamma, (x,)), learner.bind(theta, {})(x), 1e-12)


def test_adaptation_under_linear_warps_is_the_ideal_step_of_the_plain_model() -> None:
    learner, plain, task, alpha = wg.Learner(linear_model()), without_warps(), regression(), 0.1
    omega, x, y = linear_omega(learner), *task.adapt_batch(0)

    def native(gamma: Tensor) -> Tensor:
        return F.mse_loss(functional_call(plain, unflattened(gamma, dict(plain.named_parameters())), (x,)), y)

    adaptation = Adaptation(learner, wg.SGD(alpha), task, key=0)
    point = adaptation.start()
    for _ in range(3):
        ideal = ideal_step(native, omega, flattened(point.theta), alpha)
        point = adaptation.step(point).after
        close(omega(flattened(point.theta)), ideal, 1e-12)


def test_metric_of_linear_warps_is_block_diagonal_and_the_same_everywhere() -> None:
    model = nn.Sequential(nn.Linear(3, 4), wg.Warp(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
    learner = wg.Learner(model)
    omega, size = linear_omega(learner), flattened(learner.theta0).numel()
    metric = metric_inverse(omega, draw(size, key="here")).detach()
    assert torch.equal(metric, metric_inverse(omega, draw(size, key="there")).detach())
    block = (model[1].weight @ model[1].weight.mT).detach()
    expected = torch.block_diag(torch.kron(block, torch.eye(3)), block, torch.eye(4 * 2 + 2))
    close(metric, expected, 1e-14)
    assert is_positive_definite(metric)
    with torch.no_grad():
        model[1].weight[0] = model[1].weight[1]  # Ω reads φ anew: it is degenerate now
    assert not is_positive_definite(metric_inverse(omega, draw(size)).detach())


def shared_task_layer() -> nn.Sequential:
    shared = nn.Linear(3, 3)
    return nn.Sequential(shared, wg.Warp(nn.Linear(3, 3)), nn.Tanh(), shared, wg.Warp(nn.Linear(3, 3)))


def tied_warps() -> nn.Sequential:
    warps = [wg.Warp(nn.Linear(3, 3, bias=False)) for _ in range(2)]
    warps[1].weight = warps[0].weight
    return nn.Sequential(nn.Linear(3, 3), warps[0], nn.Tanh(), nn.Linear(3, 3), warps[1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), wg.Warp(nn.Linear(3, 3))), "'2.bias'"),
        (lambda: nn.Sequential(wg.Warp(nn.Linear(3, 3)), nn.Linear(3, 3)), "'0.bias'"),
        (lambda: nn.Sequential(nn.Linear(3, 3), wg.Warp(Residual(3))), "'1.body.0.bias'"),
        (lambda: nn.Sequential(nn.Linear(3, 3), *(wg.Warp(nn.Linear(3, 3)) for _ in "ab")), "'2.bias'"),
        (lambda: nn.Sequential(nn.Linear(3, 3, bias=False), wg.Warp(nn.Linear(3, 3))), "to take it up"),
        (lambda: Vector(3), "'warp.weight'"),
        (lambda: nn.Sequential(nn.Conv1d(3, 3, 1), wg.Warp(nn.Linear(3, 3))), "'1.bias'"),
        (shared_task_layer, "'4.bias'"),
        (tied_warps, "tied parameters"),
    ],
)
def test_no_explicit_omega_is_an_error_that_names_why(model: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(WarpgradError, match=message):
        linear_omega(wg.Learner(model()))


def test_flattening_goes_back_and_forth() -> None:
    tensors = {"a": draw(2, 3), "b": draw(4), "c": draw(1, 1, 2)}
    again = unflattened(flattened(tensors), tensors)
    assert list(again) == list(tensors)
    assert all(torch.equal(again[name], value) for name, value in tensors.items())
    with pytest.raises(WarpgradError, match=r"12 numbers is needed, not shape \(11,\)"):
        unflattened(torch.zeros(11), tensors)


# Ω(θ) = γ.


def test_inversion_recovers_planted_points() -> None:
    for key in range(3):
        omega = residual_omega(2, 0.5, key=10 * key)
        planted = scatter(300, key)
        gamma = vmap(omega)(planted)
        assert (gamma - planted).norm(dim=1).mean() > 0.3  # far enough from the identity to need solving
        found = invert(omega, gamma, gamma)
        assert found.converged.all()
        assert found.residual.max() < 1e-12
        close(found.theta, planted, 1e-9)


def test_inversion_is_one_newton_step_for_a_linear_warp() -> None:
    projection, planted = draw(4, 4), draw(10, 4, key="planted")
    found = invert(lambda theta: projection @ theta, planted @ projection.mT, torch.zeros(10, 4), steps=1, path_steps=0)
    assert found.converged.all()
    close(found.theta, planted, 1e-11)


def test_inversion_gets_around_folds_where_newton_stalls() -> None:
    omega, gamma = residual_omega(2, 1.5, key=5), scatter(200, "folded")
    determinants = torch.linalg.det(vmap(jacrev(omega))(scatter(2000, "grid")))
    assert (determinants < 0).any()
    assert (determinants > 0).any()
    newton = invert(omega, gamma, gamma, path_steps=0)
    followed = invert(omega, gamma, gamma)
    assert not newton.converged.all()
    assert followed.converged.all()
    close(vmap(omega)(followed.theta), gamma, 1e-12)
    # What Newton has solved stays as it was.
    assert torch.equal(followed.theta[newton.converged], newton.theta[newton.converged])


def test_inversion_counts_what_has_no_solution() -> None:
    reachable = torch.tensor([[0.5, -0.9], [0.0, 0.0], [0.99, 0.3]])
    outside = torch.tensor([[1.5, 0.0], [0.2, -2.0]])
    found = invert(torch.tanh, torch.cat([reachable, outside]), torch.zeros(5, 2), path_steps=50)
    assert found.converged.tolist() == [True, True, True, False, False]
    close(found.theta[:3], torch.atanh(reachable), 1e-12)
    close(found.residual[3:], torch.tensor([0.5, 1.0]), 1e-6)  # the distance to the range of tanh
    assert torch.isfinite(found.theta).all()


def test_inversion_survives_rows_that_leave_the_finite_numbers() -> None:
    gamma = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    start = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])  # log has no value at the second
    found = invert(torch.log, gamma, start, path_steps=20)
    assert found.converged.tolist() == [True, False]
    close(found.theta[0], gamma[0].exp(), 1e-12)
    start = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # the root has no slope at the second
    found = invert(torch.sqrt, gamma + 1, start, path_steps=0)
    assert found.converged.tolist() == [True, False]
    close(found.theta, torch.tensor([[1.0, 4.0], [0.0, 1.0]]), 1e-12)


def test_inversion_in_single_precision_and_with_a_wrong_shape() -> None:
    torch.set_default_dtype(torch.float32)
    omega = residual_omega(2, 0.5)
    planted = scatter(100)
    found = invert(omega, vmap(omega)(planted), planted + 0.3)
    assert found.theta.dtype == torch.float32
    assert found.converged.all()
    close(found.theta, planted, 1e-3)
    with pytest.raises(WarpgradError, match=r"one shape \[n, d\], not \(\(2,\), \(2,\)\)"):
        invert(omega, torch.zeros(2), torch.zeros(2))

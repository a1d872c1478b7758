"""KFAC against closed forms, and multi-headed finetuning: distinct heads, one body."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.algorithms.method import Method
from warpgrad.baselines.finetuning import HeadedTask, JointTraining, MultiHeaded
from warpgrad.baselines.kfac import KFAC, KFACAdaptation
from warpgrad.errors import WarpgradError
from warpgrad.rules import SGD
from warpgrad.tasks.supervised import SupervisedTask, TaskList


def half_square(prediction, target):
    """−log p of a Gaussian of variance 1, up to a constant: mean over examples, sum over outputs."""
    return 0.5 * (prediction - target).square().sum(dim=1).mean()


def regression(count=40, inputs=5, outputs=3):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, inputs, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 3.0, 0.2, 1.0, 2.0])
    y = torch.randn(count, outputs, generator=draw, dtype=torch.float64)
    return x, y


def learner_of(module):
    return wg.Learner(module.double(), warp=())


EXACT = KFAC(1.0, likelihood="gaussian", fisher="exact", damping=0.0, clip=None)


@pytest.mark.parametrize("bias", [True, False])
def test_one_linear_layer_of_a_gaussian_model_is_solved_in_one_newton_step(bias):
    """There F = A ⊗ I is the Hessian, so a step of size 1 lands on the least-squares solution."""
    x, y = regression()
    learner = learner_of(nn.Sequential(nn.Linear(5, 3, bias=bias)))
    adaptation = KFACAdaptation(learner, SupervisedTask(x, y, half_square), 0, EXACT)
    after = adaptation.step(adaptation.start()).after.theta
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1) if bias else x
    solution = torch.linalg.lstsq(design, y).solution.T
    torch.testing.assert_close(after["0.weight"], solution[:, :5], atol=1e-9, rtol=1e-9)
    if bias:
        torch.testing.assert_close(after["0.bias"], solution[:, 5], atol=1e-9, rtol=1e-9)


def test_a_step_is_the_exact_natural_gradient_of_a_softmax_layer_with_one_input_direction():
    """With equal inputs for all examples the Fisher matrix is exactly A ⊗ G; compare with its full damped inverse."""
    weights = torch.randn(4, 3, dtype=torch.float64)
    x = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64).repeat(6, 1)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    model = nn.Sequential(nn.Linear(3, 4, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(weights)
    learner = learner_of(model)
    settings = KFAC(0.3, fisher="exact", damping=1e-2, clip=None)
    adaptation = KFACAdaptation(learner, SupervisedTask(x, y, F.cross_entropy), 0, settings)
    after = adaptation.step(adaptation.start()).after.theta["0.weight"]
    chances = (x @ weights.T).softmax(1)
    gradient = (chances - F.one_hot(y, 4)).T @ x / 6
    inputs = x.T @ x / 6
    outputs = torch.diag(chances[0]) - torch.outer(chances[0], chances[0])
    balance = (inputs.diagonal().mean() / outputs.diagonal().mean()).sqrt()
    damped = torch.kron(
        outputs + 0.1 / balance * torch.eye(4, dtype=x.dtype), inputs + 0.1 * balance * torch.eye(3, dtype=x.dtype)
    )
    step = torch.linalg.solve(damped, gradient.flatten()).view(4, 3)
    torch.testing.assert_close(after, weights - 0.3 * step, atol=1e-10, rtol=1e-10)


def test_a_convolution_that_covers_its_image_is_a_linear_layer():
    _, y = regression()
    images = torch.randn(40, 2, 3, 3, dtype=torch.float64)
    conv = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten())
    linear = nn.Sequential(nn.Flatten(), nn.Linear(18, 3))
    with torch.no_grad():
        linear[1].weight.copy_(conv[0].weight.flatten(1))
        linear[1].bias.copy_(conv[0].bias)
    ends = []
    for module, place in ((conv, "0"), (linear, "1")):
        adaptation = KFACAdaptation(learner_of(module), SupervisedTask(images, y, half_square), 0, EXACT)
        end = adaptation.step(adaptation.start()).after.theta
        ends.append((end[f"{place}.weight"].flatten(1), end[f"{place}.bias"]))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-9, rtol=1e-9)


def test_the_factors_of_a_convolution_sum_over_patches():
    """A and G as Grosse and Martens define them, by loops over examples and locations."""
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=2, bias=True)
    model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))
    learner = learner_of(model)
    images, y = torch.randn(5, 2, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    settings = KFAC(0.1, fisher="empirical", damping=1e-3)
    adaptation = KFACAdaptation(learner, SupervisedTask(images, y, F.cross_entropy), 0, settings)
    state = adaptation.step(adaptation.start()).after.state
    inputs = torch.zeros(19, 19, dtype=torch.float64)
    outputs = torch.zeros(3, 3, dtype=torch.float64)
    padded = F.pad(images, (1, 1, 1, 1))
    middle = conv(images)
    (grads,) = torch.autograd.grad(F.cross_entropy(model[1:](middle), y, reduction="sum"), middle)
    for example in range(5):
        for row in range(2):
            for column in range(2):
                patch = padded[example, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].flatten()
                patch = torch.cat([patch, torch.ones(1, dtype=torch.float64)])
                inputs += torch.outer(patch, patch) / 5
                outputs += torch.outer(grads[example, :, row, column], grads[example, :, row, column]) / 20
    torch.testing.assert_close(state["kfac/A/0"], inputs)
    torch.testing.assert_close(state["kfac/G/0"], outputs)


def test_sampled_gradients_estimate_the_exact_fisher_and_are_keyed():
    x = torch.randn(4000, 3, dtype=torch.float64)
    y = torch.randint(4, (4000,))
    learner = learner_of(nn.Sequential(nn.Linear(3, 4)))
    task = SupervisedTask(x, y, F.cross_entropy)

    def factor(fisher, key=0):
        adaptation = KFACAdaptation(learner, task, key, KFAC(0.1, fisher=fisher))
        return adaptation.step(adaptation.start()).after.state["kfac/G/0"]

    torch.testing.assert_close(factor("sampled"), factor("exact"), atol=0.02, rtol=0.0)
    assert torch.equal(factor("sampled"), factor("sampled"))
    assert not torch.equal(factor("sampled"), factor("sampled", key=1))
    assert not torch.allclose(factor("empirical"), factor("exact"), atol=1e-4)


def test_the_clip_bounds_a_step_and_other_parameters_keep_their_gradient():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    learner = learner_of(model)
    x, _ = regression()
    task = SupervisedTask(x, torch.arange(40) % 3, F.cross_entropy)

    def moved(settings):
        adaptation = KFACAdaptation(copy.deepcopy(learner), task, 0, settings)
        transition = adaptation.step(adaptation.start())
        return {n: v - transition.after.theta[n] for n, v in transition.point.theta.items()}, transition.gradient

    free, gradient = moved(KFAC(0.5, clip=None))
    torch.testing.assert_close(free["1.weight"], 0.5 * gradient["1.weight"])
    assert not torch.allclose(free["0.weight"], 0.5 * gradient["0.weight"], rtol=0.01)
    short, _ = moved(KFAC(0.5, clip=1e-4))
    size = 0.5 * sum(float((short[name] * gradient[name]).sum()) for name in short)
    long = 0.5 * sum(float((free[name] * gradient[name]).sum()) for name in free)
    assert long > 1e-4
    assert size == pytest.approx((long * 1e-4) ** 0.5)
    ratios = torch.cat([(short[name] / free[name]).flatten() for name in ("0.weight", "1.weight", "3.weight")])
    torch.testing.assert_close(ratios, ratios[0].expand_as(ratios))


def test_what_kfac_cannot_do_is_refused_by_name():
    x, y = regression()
    task = SupervisedTask(x, y, half_square)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 5)
            self.last = nn.Linear(5, 3)

        def forward(self, inputs):
            return self.last(self.layer(self.layer(inputs)))

    adaptation = KFACAdaptation(learner_of(Twice()), task, 0, EXACT)
    with pytest.raises(WarpgradError, match="'layer': the model calls it more than once"):
        adaptation.step(adaptation.start())
    with pytest.raises(WarpgradError, match="ungrouped"):
        KFACAdaptation(learner_of(nn.Conv2d(2, 2, 3, groups=2)), task, 0, EXACT)
    with pytest.raises(WarpgradError, match="no linear layer"):
        KFACAdaptation(learner_of(nn.BatchNorm1d(5)), task, 0, EXACT)
    constant = SupervisedTask(torch.zeros_like(x), y, half_square)
    adaptation = KFACAdaptation(learner_of(nn.Linear(5, 3)), constant, 0, EXACT)
    with pytest.raises(WarpgradError, match="raise KFAC's damping"):
        adaptation.step(adaptation.start())
    with pytest.raises(WarpgradError, match="decay"):
        KFAC(0.1, decay=1.0)


# Multi-headed finetuning.


def multi_headed(heads=3):
    torch.manual_seed(1)
    return MultiHeaded(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), [nn.Linear(5, 2) for _ in range(heads)])


def headed_tasks(count=3):
    draw = torch.Generator().manual_seed(5)
    tasks = []
    for place in range(count):
        x = torch.randn(12, 4, generator=draw, dtype=torch.float64)
        y = torch.randn(12, 2, generator=draw, dtype=torch.float64)
        tasks.append(HeadedTask(SupervisedTask(x, y, F.mse_loss, batch_size=6, name=f"t{place}"), place))
    return tasks


def steps_in_turn(model, tasks, steps, lr):
    """The reference: plain SGD on one batch after the other, through the head of its task."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for k in range(steps):
        for task in tasks:
            x, y = task.adapt_batch(k)
            optimiser.zero_grad()
            F.mse_loss(model(x, task.head), y).backward()
            optimiser.step()
    return model


def averaged_steps(model, tasks, steps, lr):
    """The reference: the mean loss over tasks for the body, the sum over heads for the heads."""
    for k in range(steps):
        model.zero_grad()
        losses = [F.mse_loss(model(x, task.head), y) for task in tasks for x, y in [task.adapt_batch(k)]]
        torch.stack(losses).sum().backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                sharers = sum(name.startswith(f"heads.{task.head}.") for task in tasks)
                scale = 1 / max(1, sharers) if name.startswith("heads") else 1 / len(tasks)
                if parameter.grad is not None:
                    parameter -= lr * scale * parameter.grad
    return model


@pytest.mark.parametrize(("averaged", "reference"), [(False, steps_in_turn), (True, averaged_steps)])
def test_joint_training_steps_once_per_task_batch_or_on_their_mean(averaged, reference):
    model = multi_headed().double()
    tasks = headed_tasks()
    batch = [tasks[0], tasks[2], tasks[0].with_seed(9)]
    expected = reference(copy.deepcopy(model), batch, steps=4, lr=0.1)
    learner = wg.Learner(model, warp=(), allow_unused=True)
    updates = []

    def update(group, gradient):
        assert group == "theta0"
        updates.append(set(gradient))
        with torch.no_grad():
            for name, value in gradient.items():
                learner.theta0[name] -= 0.1 * value

    idle = model.heads[1].weight.detach().clone()
    algorithm = JointTraining(steps=4, tasks=3, averaged=averaged)
    record = algorithm.meta_step(Method(learner, SGD(0.1)), batch, [1, 2, 3], update)
    assert len(updates) == (4 if averaged else 12)
    assert not any("heads.1.weight" in names for names in updates)
    for name, value in expected.named_parameters():
        torch.testing.assert_close(learner.theta0[name].detach(), value.detach())
    assert torch.equal(model.heads[1].weight, idle)
    assert not torch.allclose(model.heads[0].weight, model.heads[2].weight)
    assert set(record) == {"task_loss"}


def test_heads_are_distinct_and_tasks_keep_theirs():
    model = multi_headed()
    assert len({parameter.data_ptr() for head in model.heads for parameter in head.parameters()}) == 6
    shared = nn.Linear(5, 2)
    with pytest.raises(WarpgradError, match="head of its own"):
        MultiHeaded(nn.Identity(), [shared, shared])
    family = TaskList(headed_tasks())
    for seed in range(5):
        for task in family.meta_batch(seed, 7):
            assert task.name == f"t{task.head}"
    x, y = headed_tasks()[1].adapt_batch(0)
    learner = wg.Learner(model.double(), warp=(), allow_unused=True)
    forward = learner.bind(learner.start(0), learner.buffers(), training=False)
    task = headed_tasks()[1]
    torch.testing.assert_close(task.loss(forward, (x, y)), F.mse_loss(model(x, 1), y))
    assert task.metrics(forward, (x, y))["loss"] == pytest.approx(float(F.mse_loss(model(x, 1), y).detach()))
    method = Method(learner, SGD(0.1))
    with pytest.raises(WarpgradError, match="HeadedTask"):
        JointTraining(steps=1, tasks=1).meta_step(method, [task.task], [0], lambda group, gradient: None)


def test_joint_training_runs_in_meta_train():
    learner = wg.Learner(multi_headed().double(), warp=(), allow_unused=True)
    algorithm = JointTraining(steps=20, tasks=3)
    records = wg.meta_train(
        learner,
        TaskList(headed_tasks()),
        algorithm=algorithm,
        rule=SGD(0.1),
        optimiser={"theta0": partial(torch.optim.SGD, lr=0.1)},
        meta_steps=10,
    )
    assert records[-1]["task_loss"] < 0.8 * records[0]["task_loss"]

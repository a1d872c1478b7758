"""`wg.check`, and operations whose second derivative is wrong or missing in PyTorch."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import warpgrad as wg
from warpgrad.keys import generator


class Prototypes(nn.Module):
    def __init__(self, distance) -> None:
        super().__init__()
        self.embed, self.prototypes, self.distance = nn.Linear(3, 4), nn.Parameter(torch.randn(2, 4)), distance

    def forward(self, x: Tensor) -> Tensor:
        return self.distance(self.embed(x), self.prototypes)


class Bags(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 3, **options), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.bag.padding_idx is None and self.bag.mode != "max":
            flat, offsets = x.flatten(), torch.arange(0, x.numel(), x.shape[1])
            return self.head(torch.tanh(self.bag(flat, offsets) + self.bag(x)))
        return self.head(torch.tanh(self.bag(x)))


def old_weight_norm(layer: nn.Module, **options) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer, **options)


def chain(first: nn.Module, last: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.Tanh(), last)


MODELS = {
    "old weight_norm": (lambda: chain(old_weight_norm(nn.Linear(3, 4)), old_weight_norm(nn.Linear(4, 2))), "2"),
    "old weight_norm, one norm": (lambda: chain(old_weight_norm(nn.Linear(3, 4), dim=None), nn.Linear(4, 2)), "2"),
    "weight_norm": (lambda: chain(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)), "0"),
    "spectral_norm": (lambda: chain(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2)), "0"),
    "cdist": (lambda: Prototypes(torch.cdist), "prototypes"),
    "cdist, p=1": (lambda: Prototypes(lambda x, y: torch.cdist(x, y, p=1.0)), "embed"),
    "cdist, p=3": (lambda: Prototypes(lambda x, y: torch.cdist(x, y, p=3.0)), "embed"),
    "pdist": (lambda: Prototypes(lambda x, y: F.pdist(torch.cat([x, y]))[:12].view(6, 2)), "embed"),
    "hardsigmoid": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 2)), "0"),
    "compiled": (lambda: torch.compile(chain(nn.Linear(3, 4), nn.Linear(4, 2))), "0"),
    "bag mean": (Bags, "bag"),
    "bag sum": (lambda: Bags(mode="sum"), "bag"),
    "bag max": (lambda: Bags(mode="max"), "head"),
    "bag padded": (lambda: Bags(padding_idx=2), "head"),
}


def task(name: str = "") -> wg.SupervisedTask:
    draw = generator(1, "check")

    def data() -> tuple[Tensor, Tensor]:
        if name.startswith("bag"):
            return torch.randint(7, (6, 4), generator=draw), torch.randn(6, 2, generator=draw)
        return torch.randn(6, 3, generator=draw), torch.randn(6, 2, generator=draw)

    return wg.SupervisedTask(*data(), F.mse_loss, meta=data(), test=data(), name="user 7")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # raised where torch.compile is imported
@pytest.mark.parametrize("name", MODELS)
def test_second_derivatives_are_right_where_pytorch_has_none_or_a_wrong_one(name):
    make, warp = MODELS[name]
    torch.manual_seed(0)
    learner = wg.Learner(make(), warp=warp)
    for objective in (wg.Exact(), wg.Approximate(), None):
        report = wg.check(learner, task(name), wg.SGD(0.1), objective)
        assert all(one.error < 1e-6 for one in report.comparisons), str(report)
        assert any(abs(one.gradient) > 1e-6 for one in report.comparisons)


def test_a_stack_of_tasks_has_the_right_second_derivative_of_weight_norm_too():
    from functools import partial

    found = {}
    for backend in ("loop", "batched"):
        torch.manual_seed(0)
        learner = wg.Learner(chain(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)).double(), warp="0")
        inputs, targets = (value.double() for value in task().adapt_batch(0))
        tasks = wg.TaskList([wg.SupervisedTask(inputs + k, targets, F.mse_loss) for k in (0, 1)])
        wg.meta_train(
            learner, tasks, algorithm=wg.Unrolled(steps=2, tasks=2, backend=backend), rule=wg.SGD(0.1),
            optimiser=partial(torch.optim.SGD, lr=0.1), meta_steps=2,
        )  # fmt: skip
        found[backend] = learner.state_dict()
    torch.testing.assert_close(found["loop"], found["batched"], rtol=1e-10, atol=1e-12)


class WrongSquare(torch.autograd.Function):
    """x², with a derivative that forgets the 2 the second time."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x + x.detach())


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.lower, self.upper = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(WrongSquare.apply(self.lower(self.bottom(x))))


def test_a_wrong_second_derivative_is_found_and_a_right_first_one_passes():
    learner = wg.Learner(Wrong(), warp="bottom")
    with pytest.raises(wg.WarpgradError, match=r"gradient of Exact for φ along a random direction is .*relative error"):
        wg.check(learner, task(), wg.SGD(0.1), wg.Exact())
    report = wg.check(learner, task(), wg.SGD(0.1), wg.Approximate())
    assert "gradient of Approximate for φ" in str(report)


@pytest.mark.parametrize("objective", [wg.Exact(), None])
def test_a_model_with_many_relus_passes(objective):
    torch.manual_seed(0)
    blocks = (nn.Conv1d(3, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.ReLU())
    learner = wg.Learner(nn.Sequential(*blocks, nn.Flatten(), nn.Linear(176, 4)), warp="2")
    draw = generator(1, "signals")
    x, y = 3 * torch.randn(40, 3, 32, generator=draw) + 5, torch.randint(4, (40,), generator=draw)
    signals = wg.SupervisedTask(x[:20], y[:20], F.cross_entropy, meta=(x[20:], y[20:]))
    for key in range(4):
        wg.check(learner, signals, wg.SGD(0.1), objective, key=key)


def test_the_check_leaves_the_learner_as_it_was():
    learner = wg.Learner(chain(nn.Linear(3, 4), nn.Linear(4, 2)), warp="0")
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    rule = wg.SGD(wg.Learned(0.1))
    wg.check(learner, task(), rule, wg.Exact())
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())
    assert rule.meta["lr"].dtype == torch.float32


class Margin(wg.SupervisedTask):
    def loss(self, forward, batch):
        return F.multi_margin_loss(forward(batch[0]), batch[1].argmax(1))


def test_an_operation_without_a_second_derivative_is_refused_by_name():
    learner = wg.Learner(chain(nn.Linear(3, 4), nn.Linear(4, 2)), warp="0")
    inputs, targets = task().adapt_batch(0)
    margin = Margin(inputs, targets, F.mse_loss)
    with pytest.raises(wg.WarpgradError, match=r"no second derivative of the operation multi_margin_loss.*Approximate"):
        wg.check(learner, margin, wg.SGD(0.1), wg.Exact())
    wg.check(learner, margin, wg.SGD(0.1), wg.Approximate())


class Restless(wg.SupervisedTask):
    def adapt_batch(self, k: int) -> tuple[Tensor, Tensor]:
        return torch.randn(4, 3), torch.randn(4, 2)


def test_a_task_that_does_not_repeat_itself_is_refused():
    from functools import partial

    learner = wg.Learner(chain(nn.Linear(3, 4), nn.Linear(4, 2)), warp="0")
    restless = Restless(*task().adapt_batch(0), F.mse_loss, name="restless")
    with pytest.raises(wg.WarpgradError, match=r"task 'restless' returned a different batch when adapt_batch\(0\)"):
        wg.check(learner, restless, wg.SGD(0.1), wg.Exact())
    with pytest.raises(wg.WarpgradError, match=r"task 'restless' returned a different batch"):
        wg.meta_train(
            learner, wg.FunctionFamily(lambda seed: restless), algorithm=wg.Online(steps=1, tasks=1), rule=wg.SGD(0.1),
            objective=wg.Exact(), optimiser=partial(torch.optim.SGD, lr=0.1), meta_steps=1,
        )  # fmt: skip

"""The workloads that are timed: five networks at the sizes of the experiments, on batches in memory.

Each network is there twice: as the library's learner, and written out over named tensors, as a person without the
library would write it. Both read the same weights by the same names.

Data are random tensors from keys: their content does not change how long a step takes, and no clock runs while they
are made. Every task returns the same few batches over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from warpgrad.data.tasks.intents import SentenceBatch
from warpgrad.experiments.continual.config import ContinualConfig
from warpgrad.experiments.continual.methods import network as sine_network
from warpgrad.experiments.synthetic.surfaces import Position, ResidualOmega, SurfaceFamily, surface
from warpgrad.experiments.text_intents.config import TextConfig
from warpgrad.experiments.text_intents.methods import text_learner
from warpgrad.keys import fold, generator
from warpgrad.layers import warp_convnet
from warpgrad.layers.sentences import Encoder
from warpgrad.lazy import naming_extras
from warpgrad.maze import AgentOptions, Maze, build_learner
from warpgrad.model.learner import Forward, Learner
from warpgrad.tasks.base import Task
from warpgrad.tasks.reinforcement import ActorCritic, EpisodeTask

Named = Mapping[str, Tensor]
Loss = Callable[[Named, Named, Any, Named], Tensor]
"""(θ, φ, batch, statistics) -> loss. `statistics` are running statistics of batch-norm that the pass may write to; an
empty mapping keeps none."""

MetaStep = Literal["leap", "online", "stream"]
"""Algorithm 2 with Leap and η = 1; Algorithm 1; Algorithm 3 with the in-place objective."""


@dataclass(frozen=True)
class Workload:
    """A network, its tasks, and the same loss written by hand."""

    name: str
    words: str
    make: Callable[[], Learner]
    """A new learner; always at the same weights."""
    tasks: Sequence[Task]
    steps: int
    """K."""
    rate: float
    """α, and the meta step size: small, so that nothing overflows however often a step is repeated."""
    loss: Loss
    meta_step: MetaStep
    channels_last: bool = False
    make_once: Callable[[], Learner] | None = None
    """The same learner with a custom backward pass, where the library has one; it can be differentiated only once."""

    def learner(self, *, twice: bool) -> Learner:
        """Return a new learner, for gradients of gradients or not."""
        return self.make() if twice or self.make_once is None else self.make_once()

    @property
    def points(self) -> int:
        """(task, step) pairs of one piece of work."""
        return self.steps * len(self.tasks)

    @property
    def keys(self) -> list[int]:
        return [fold("bench", self.name, place) for place in range(len(self.tasks))]


class FixedBatches(Task):
    """A task with its batches in memory; step k takes the k-th, and begins again where they end."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], adapt: Sequence[Any], meta: Sequence[Any]) -> None:
        self.stack_key = (FixedBatches, loss)
        self._loss, self._adapt, self._meta = loss, adapt, meta

    def adapt_batch(self, k: int) -> Any:
        return self._adapt[k % len(self._adapt)]

    def meta_batch(self, k: int) -> Any:
        return self._meta[k % len(self._meta)]

    def loss(self, forward: Forward, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return self._loss(forward(inputs), targets)


def convolutional(theta: Named, phi: Named, batch: tuple[Tensor, Tensor], statistics: Named) -> Tensor:
    """Compute four blocks of convolution, pooling, batch-norm and ReLU, with 3×3 warps if φ has them, and a head."""
    x, labels = batch
    for place in range(1, 5):
        norm = f"block{place}.norm"
        x = F.max_pool2d(F.conv2d(x, theta[f"block{place}.conv.weight"], padding=1), 2)
        running = statistics.get(f"{norm}.running_mean"), statistics.get(f"{norm}.running_var")
        x = F.relu(F.batch_norm(x, *running, theta[f"{norm}.weight"], theta[f"{norm}.bias"], training=True))
        if phi:
            x = F.conv2d(x, phi[f"warp{place}.weight"], phi[f"warp{place}.bias"], padding=1)
    return F.cross_entropy(F.linear(x.flatten(1), theta["head.weight"], theta["head.bias"]), labels)


def feed_forward(theta: Named, phi: Named, batch: tuple[Tensor, Tensor], statistics: Named) -> Tensor:
    """Compute three hidden layers of ReLUs, each with a residual tanh warp if φ has one, and a linear head."""
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
    """Compute the height at Ω(θ) = θ + g(θ), where g is a tanh network."""
    del statistics
    start = theta["theta"]
    hidden = torch.tanh(F.linear(start, phi["omega.g.0.weight"], phi["omega.g.0.bias"]))
    return surface(start + F.linear(hidden, phi["omega.g.2.weight"], phi["omega.g.2.bias"]), batch)


def conv(
    quick: bool = False, *, warp: bool = True, steps: int | None = None, tasks: int = 1, filters: int | None = None
) -> Workload:
    """Return the network of App. E on 28×28 images of 20 classes."""
    own, size = (8, 5) if quick else (64, 20)
    filters = filters or own
    options: dict[str, Any] = {} if warp else {"warp": None}
    drawn = [_images(size, place) for place in range(tasks)]
    return Workload(
        "conv",
        f"{filters} filters, batch {size}, 28×28",
        partial(_learner, lambda: warp_convnet(1, 20, widths=(filters,) * 4, **options), warp, channels_last=True),
        [FixedBatches(F.cross_entropy, adapt, meta) for adapt, meta in drawn],
        steps or (2 if quick else 5),
        0.01,
        convolutional,
        "leap",
        channels_last=True,
    )


def mlp(quick: bool = False, *, warp: bool = True, steps: int | None = None, tasks: int = 5) -> Workload:
    """Return the network of App. J; a meta-batch has the examples of all five sub-tasks."""
    config = ContinualConfig(method="warpgrad" if warp else "no-warp")
    drawn = [(_sines(5, place, "adapt"), _sines(25, place, "meta")) for place in range(tasks)]
    return Workload(
        "mlp",
        f"1-200-200-200-1, batch 5, {tasks} tasks",
        partial(_learner, lambda: sine_network(config), warp),
        [FixedBatches(F.mse_loss, adapt, meta) for adapt, meta in drawn],
        steps or (2 if quick else 20),
        0.001,
        feed_forward,
        "online",
    )


def surfaces(quick: bool = False) -> Workload:
    """Return one surface of App. D with ten starts."""
    return Workload(
        "surfaces",
        "2-30-2, 10 starts",
        partial(_learner, lambda: Position(ResidualOmega(30)), True, names="omega", start={"theta": "fresh"}),
        SurfaceFamily().meta_batch(0, 10),
        2 if quick else 20,
        0.01,
        on_surface,
        "online",
    )


def rnn(quick: bool = False) -> Workload:
    """Return the Warp-RNN of App. I in its maze; a batch is 30 episodes, rolled out in the forward pass."""
    episodes, length = (3, 5) if quick else (30, 200)
    maze, objective = Maze(length=length), ActorCritic()

    def make(taped: bool) -> Learner:
        with _seeded():
            return build_learner("warp-rnn", maze, AgentOptions(taped=taped), "cpu")

    plain = partial(make, False)
    module = plain().module

    def loss(theta: Named, phi: Named, batch: Tensor, statistics: Named) -> Tensor:
        del statistics
        return objective.loss(functional_call(module, {**theta, **phi}, (batch,), tie_weights=False))

    words = f"Warp-RNN of 100 units, {episodes} episodes of {length} steps"
    tasks = [EpisodeTask(0, episodes, objective)]
    return Workload("rnn", words, plain, tasks, 1, 0.001, loss, "stream", make_once=partial(make, True))


class FixedSentences(FixedBatches):
    """Like `FixedBatches`, with batches of the hidden states of sentences; such tasks are evaluated one by one."""

    def __init__(self, adapt: Sequence[SentenceBatch], meta: Sequence[SentenceBatch]) -> None:
        super().__init__(F.cross_entropy, adapt, meta)
        self.stack_key = None

    def loss(self, forward: Forward, batch: SentenceBatch) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(forward(batch.states, batch.mask, batch.support, batch.classes), batch.labels)


def transformer(quick: bool = False) -> Workload:
    """Return the classifier of the text experiment on an encoder of MiniLM's size; weights do not affect time."""
    width, classes, shots, tokens = (24, 3, 2, 4) if quick else (384, 5, 5, 12)
    config = TextConfig()

    def make() -> Learner:
        with naming_extras():
            from transformers import BertConfig, BertModel
        shape = BertConfig(hidden_size=width, num_hidden_layers=6, num_attention_heads=12, intermediate_size=4 * width)
        with _seeded():
            encoder: nn.Module = BertModel(shape)
            return text_learner(config, Encoder(encoder.eval(), None, Path(), ""), classes)

    module = make().module

    def loss(theta: Named, phi: Named, batch: SentenceBatch, statistics: Named) -> Tensor:
        del statistics
        with sdpa_kernel(SDPBackend.MATH):  # the fused one has no second derivative
            logits = functional_call(module, {**theta, **phi}, (*batch[:3], classes), tie_weights=False)
        return F.cross_entropy(logits, batch.labels)

    def sentences(asked: int, role: str) -> list[SentenceBatch]:
        draw = generator("bench", "sentences", role)
        support = torch.arange(classes).repeat_interleave(shots)
        labels = torch.arange(classes).repeat_interleave(asked) if asked else support
        count = len(support) + (len(labels) if asked else 0)
        states = [torch.randn(count, tokens, width, generator=draw) for _ in range(2)]
        return [SentenceBatch(one, torch.ones(count, tokens), support, labels, classes) for one in states]

    tasks = [FixedSentences(sentences(0, "adapt"), sentences(2 if quick else config.meta_query, "meta"))]
    words = f"{config.layers} warped layers of width {width}, {classes} labels of {shots} sentences of {tokens} tokens"
    return Workload("transformer", words, make, tasks, 1, 0.001, loss, "online")


WORKLOADS: Mapping[str, Callable[[bool], Workload]] = {
    "conv": conv,
    "mlp": mlp,
    "rnn": rnn,
    "surfaces": surfaces,
    "transformer": transformer,
}


def _learner(module: Callable[[], nn.Module], warp: bool, *, names: str | None = None, **options: Any) -> Learner:
    """Build a learner; `names` are those of the warp's parameters where modules are not marked."""
    with _seeded():
        return Learner(module(), warp=names if warp else (), **options)


@contextmanager
def _seeded() -> Iterator[None]:
    """Draw the same weights inside the block every time, leaving the random state outside untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold("bench", "weights"))
        yield


def _images(size: int, place: int, batches: int = 4) -> tuple[list[Any], list[Any]]:
    """Draw batches of noise with labels, to adapt to and to be judged on."""
    draw = generator("bench", "images", place)
    drawn = [
        (torch.rand(size, 1, 28, 28, generator=draw), torch.randint(20, (size,), generator=draw))
        for _ in range(2 * batches)
    ]
    return drawn[:batches], drawn[batches:]


def _sines(size: int, place: int, role: str, batches: int = 4) -> list[Any]:
    """Draw batches of one sine."""
    draw = generator("bench", "sines", place, role)
    inputs = [10 * torch.rand(size, 1, generator=draw) - 5 for _ in range(batches)]
    return [(x, torch.sin(x + place)) for x in inputs]

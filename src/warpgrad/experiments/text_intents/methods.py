"""Every method of the text experiment: the encoder, its partition into θ and φ, the rule, and the meta-training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from warpgrad.algorithms import Online, Unrolled
from warpgrad.algorithms.method import Method
from warpgrad.data.sources.text import LabelledText, open_text
from warpgrad.data.tasks.intents import IntentFamily, IntentShape, SentenceStates, cached_states
from warpgrad.errors import WarpgradError
from warpgrad.experiments.methods import Recipe, adam, keyed
from warpgrad.experiments.text_intents.config import WARPED, TextConfig
from warpgrad.initialisers import FOMAML, MAML, Leap, Reptile
from warpgrad.keys import fold, generator
from warpgrad.layers.sentences import LONGEST, Encoder, SentenceClassifier, open_encoder, upper_part
from warpgrad.layers.transformer import warp_transformer
from warpgrad.model.learner import Learner
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD, MetaSGD

CAPACITY = 150
"""The number of classes that the head has room for, unless a task has more."""
LORA_ON = ("attention.self.query", "attention.self.value")
"""Where the method `lora` has its low-rank updates, as is usual. For the others, θ is after the attention and after the
feed-forward block, where the warps are."""


@dataclass(frozen=True)
class Sentences:
    """The data of a run: text, the states of the lower layers, and the encoder."""

    text: LabelledText
    states: SentenceStates
    """Of all sentences, then of those out of scope."""
    encoder: Encoder

    def family(self, config: TextConfig, split: str, shape: IntentShape) -> IntentFamily:
        """Return the family of tasks on the labels of a split."""
        return IntentFamily(self.text, self.states, self.text.split(config.seed)[split], shape, self._outside(config))

    def _outside(self, config: TextConfig) -> list[int]:
        """Return the indices of the out-of-scope sentences, drawn from the seed."""
        there = len(self.text.out_of_scope)
        order = torch.randperm(there, generator=generator(config.seed, "out of scope")).tolist()
        return [len(self.text.texts) + place for place in order[: config.outside]]


def open_sentences(config: TextConfig) -> Sentences:
    """Open the data and the encoder that the settings name; states of the lower layers are cached beside the data."""
    text, encoder = open_text(config.data), open_encoder(config.encoder)
    assert text.path is not None
    states = cached_states(
        [*text.texts, *text.out_of_scope],
        partial(encoder.lower, layers=config.layers),
        text.path,
        f"{encoder.sha256}/{config.layers}/{LONGEST}",
        _progress,
    )
    return Sentences(text, states, encoder)


def _progress(done: int, total: int) -> None:
    if 10 * done // total > 10 * (done - 1) // total or done == total:
        print(f"{done}/{total} sentences through the lower layers, once", file=sys.stderr, flush=True)


def training_family(config: TextConfig, data: Sentences) -> IntentFamily:
    """Return the tasks to meta-train on: 15 labels drawn from all domains, or a whole domain."""
    shape = IntentShape(
        config.ways,
        config.train_shots,
        query=config.query,
        batch_shots=config.batch_shots,
        meta_query=config.meta_query,
    )
    return data.family(config, "train", shape)


def recipe(config: TextConfig, encoder: Encoder, capacity: int = CAPACITY) -> Recipe:
    """Return how a method is meta-trained."""
    learner = text_learner(config, encoder, capacity)
    optimiser = adam(phi=config.meta_lr, theta0=config.theta0_lr, rule=config.rule_lr)
    schedule = partial(CosineAnnealingLR, T_max=config.meta_steps) if config.meta_schedule == "cosine" else None
    made = partial(Recipe, optimiser=optimiser, clip=config.meta_clip, schedule=schedule)
    online = Online(steps=config.steps, tasks=config.meta_batch)
    unrolled = Unrolled(steps=config.steps, tasks=config.meta_batch)
    descent = SGD(config.inner_lr)
    match config.method:
        case "warp-maml" | "warp-leap":
            objective = Exact() if config.objective == "exact" else Approximate()
            return made(Method(learner, descent, objective, MAML() if config.method == "warp-maml" else Leap()), online)
        case "fomaml" | "reptile":
            return made(Method(learner, descent, None, FOMAML() if config.method == "fomaml" else Reptile()), online)
        case "maml" | "anil":
            return made(Method(learner, descent), unrolled)
        case "meta-sgd":
            return made(Method(learner, MetaSGD(config.inner_lr)), unrolled)
    raise WarpgradError(f"{config.method} is not meta-trained.")


def text_learner(config: TextConfig, encoder: Encoder, capacity: int = CAPACITY) -> Learner:
    """Build the classifier with its θ and φ; for every method, the head's correction starts at zero on every task."""
    net = classifier(config, encoder, capacity).to(config.device)
    if config.method == "anil":
        return Learner(net, task="head", start={"head": "zero"})
    if config.method in WARPED:
        return Learner(net, start={"head": "zero"})
    return Learner(net, warp=(), start={"head": "zero"})


def classifier(config: TextConfig, encoder: Encoder, capacity: int = CAPACITY) -> SentenceClassifier:
    """Build the method's upper layers with the encoder's weights; parameters that require a gradient are adapted."""
    upper: nn.Module = upper_part(encoder.model, config.layers)
    if config.method in ("tune-all", "contrastive"):
        upper.requires_grad_(True)
    elif config.method in ("logistic", "centroid"):
        upper.requires_grad_(False)
    else:
        upper = keyed(config.seed, "theta", lambda: warp_transformer(upper, **warp_settings(config)))
    return SentenceClassifier(upper, width=encoder.width, capacity=capacity, temperature=config.temperature)


def warp_settings(config: TextConfig) -> dict[str, Any]:
    """Return the arguments of `warp_transformer` for a method."""
    settings: dict[str, Any] = {"rank": config.rank, "warp": config.warp if config.method in WARPED else None}
    if config.method == "lora":
        settings["on"] = list(LORA_ON)
    return settings


def task_key(config: TextConfig, *place: int | str) -> int:
    """Return the key that draws the sentences of a held-out task, the same for every method of a seed."""
    return fold("held out", config.seed, *place)

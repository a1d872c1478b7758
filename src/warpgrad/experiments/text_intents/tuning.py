"""Common uses of a pretrained encoder with a few labelled sentences: the methods that are not meta-trained.

All start from the pretrained encoder, and those with a head initialise it at the centroids of the support set.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warpgrad.data.tasks.intents import IntentTask, SentenceBatch
from warpgrad.experiments.text_intents.config import TextConfig
from warpgrad.layers.sentences import Head, SentenceClassifier

Fitted = Callable[[], tuple[SentenceClassifier, Head]]
"""The current state of a method: the encoder's upper layers, and the head, which is fitted on demand."""


def adapted_by(config: TextConfig, plain: SentenceClassifier, task: IntentTask) -> Iterator[Fitted]:
    """Yield the classifier before the first step and after each; it does not change until the next one is requested."""
    net = copy.deepcopy(plain)
    match config.method:
        case "centroid":
            yield lambda: (net, centroid_head(net, task))
        case "logistic":
            yield lambda: (net, logistic(net, task, config.penalty))
        case "contrastive":
            for tuned in contrastive(net, task, config.tune_lr, config.adaptation_steps):
                yield partial(_with_logistic, tuned, task, config.penalty)
        case _:
            tuned_by = fine_tuned if config.tune_head == "centroids" else linearly_tuned
            yield from tuned_by(net, task, config.tune_lr, config.adaptation_steps)


def _with_logistic(net: SentenceClassifier, task: IntentTask, penalty: float) -> tuple[SentenceClassifier, Head]:
    return net, logistic(net, task, penalty)


def fine_tuned(net: SentenceClassifier, task: IntentTask, lr: float, steps: int) -> Iterator[Fitted]:
    """Fine-tune the upper layers' trainable parameters and the head with AdamW, on the loss that all methods use."""
    optimiser = torch.optim.AdamW(_trainable(net), lr=lr)

    def fitted() -> tuple[SentenceClassifier, Head]:
        return net, centroid_head(net, task)

    yield fitted
    for k in range(steps):
        batch = task.adapt_batch(k)
        logits = net(batch.states, batch.mask, batch.support, batch.classes)
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(logits, batch.labels))
        optimiser.step()
        yield fitted


def linearly_tuned(net: SentenceClassifier, task: IntentTask, lr: float, steps: int) -> Iterator[Fitted]:
    """Fine-tune with AdamW and a linear head, which starts at the centroids and is then trained freely."""
    weight, bias = (value.clone().requires_grad_() for value in centroid_head(net, task))
    optimiser = torch.optim.AdamW([*_trainable(net.upper), weight, bias], lr=lr)

    def fitted() -> tuple[SentenceClassifier, Head]:
        return net, (weight.detach(), bias.detach())

    yield fitted
    for k in range(steps):
        batch = task.adapt_batch(k)
        loss = F.cross_entropy(F.linear(net.embed(batch.states, batch.mask), weight, bias), batch.labels)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        yield fitted


def contrastive(net: SentenceClassifier, task: IntentTask, lr: float, steps: int) -> Iterator[SentenceClassifier]:
    """Fine-tune with AdamW on pairs of sentences, as SetFit does before it fits a head.

    The loss is the squared error of cosines, which should be 1 for two sentences of one label and 0 for two of
    different labels; both kinds of pairs have the same weight.
    """
    optimiser = torch.optim.AdamW(_trainable(net.upper), lr=lr)
    yield net
    for k in range(steps):
        batch = task.adapt_batch(k)
        optimiser.zero_grad()
        torch.autograd.backward(pair_loss(net.embed(batch.states, batch.mask), batch.labels))
        optimiser.step()
        yield net


def pair_loss(sentences: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error of the cosines of all pairs, averaged over the kinds of pairs that are present."""
    first, second = torch.triu_indices(len(labels), len(labels), offset=1)
    cosine = (sentences[first] * sentences[second]).sum(1)
    same = labels[first] == labels[second]
    errors = (cosine - same.to(cosine)).square()
    return torch.stack([errors[kind].mean() for kind in (same, ~same) if bool(kind.any())]).mean()


def logistic(net: SentenceClassifier, task: IntentTask, penalty: float) -> Head:
    """Fit multinomial logistic regression to the support set, minimising Σ −log p + penalty/2 ‖W‖²."""
    sentences, labels = _support(net, task)
    weight = torch.zeros(task.classes, sentences.shape[1], requires_grad=True)
    bias = torch.zeros(task.classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(sentences, weight, bias), labels, reduction="sum")
        loss = loss + penalty / 2 * weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def centroid_head(net: SentenceClassifier, task: IntentTask) -> Head:
    """Return the head at the centroids of the support set."""
    batch = task.batch(task.support)
    return net.fitted(batch.states, batch.mask, batch.labels, task.classes)


def _support(net: SentenceClassifier, task: IntentTask) -> tuple[Tensor, Tensor]:
    batch: SentenceBatch = task.batch(task.support)
    with torch.no_grad():
        return net.embed(batch.states, batch.mask), batch.labels


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]

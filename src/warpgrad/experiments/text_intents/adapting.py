"""`warpgrad adapt`: adapt a meta-trained run to a user's labelled sentences, and write the classifier to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from warpgrad.algorithms.method import Method
from warpgrad.data.sources.text import Fields, read_rows
from warpgrad.data.tasks.intents import IntentTask, SentenceStates
from warpgrad.errors import WarpgradError
from warpgrad.experiments.text_intents.config import META, TextConfig
from warpgrad.experiments.text_intents.evaluation import adapted_points, trained_method
from warpgrad.experiments.text_intents.methods import CAPACITY, warp_settings
from warpgrad.io import read_object
from warpgrad.layers.export import export_classifier
from warpgrad.layers.sentences import open_encoder
from warpgrad.training.run_directory import check_read


@dataclass(frozen=True)
class Summary:
    """The summary of an adaptation."""

    sentences: int
    labels: int
    steps: int
    first: float
    """L_task before the first step, and at the last."""
    last: float


def adapt_run(
    config: TextConfig,
    run: Path,
    data: Path,
    out: Path,
    *,
    fields: Fields,
    encoder: str | None = None,
    steps: int | None = None,
    keep_warps: bool = False,
) -> Summary:
    """Adapt a meta-trained run to the labelled sentences of a file, and write the classifier to `out`."""
    if config.method not in META:
        raise WarpgradError(
            f"{run} is a run of {config.method}, which is not meta-trained: adapt a run of {', '.join(META)}."
        )
    rows = read_rows(data, fields)
    labels = sorted({label for _, label, _ in rows})
    if len(labels) < 2:
        raise WarpgradError(f"{data} has only one label, '{labels[0]}': classification needs at least two.")
    opened = open_encoder(config.encoder if encoder is None else encoder)
    check_read(read_object(run / "config.json"), {"encoder_sha256": opened.sha256}, run)
    method = trained_method(config, opened, run, max(CAPACITY, len(labels)))
    texts = [text for text, _, _ in rows]
    states = SentenceStates.encoded(texts, partial(opened.lower, layers=config.layers))
    members = [[place for place, row in enumerate(rows) if row[1] == label] for label in labels]
    task = IntentTask(data.name, states, members, members, batch_shots=5)
    count = config.adaptation_steps if steps is None else steps
    *_, fitted = adapted_points(method, task, count)
    net, head = fitted()
    first, last = (_loss(method, task, point) for point in (method.learner.theta0, dict(net.named_parameters())))
    export_classifier(
        out, opened, net, head, labels,
        layers=config.layers, keep_warps=warp_settings(config) if keep_warps else None,
    )  # fmt: skip
    return Summary(len(rows), len(labels), count, first, last)


def _loss(method: Method, task: IntentTask, values: Mapping[str, Tensor]) -> float:
    """Return L_task on the batch of the first step, with θ taken from `values`."""
    learner = method.learner
    theta = {name: values[name].detach() for name in learner.theta0}
    with torch.no_grad(), learner.modes_kept():
        return float(task.loss(learner.bind(theta, learner.buffers(), training=False), task.adapt_batch(0)))

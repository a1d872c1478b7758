"""Adaptation to new domains: the same support sets and the same query sentences for every method of a seed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.algorithms.method import Method, load_weights, weights
from warpgrad.data.sources.text import open_text
from warpgrad.data.tasks.intents import IntentFamily, IntentShape, IntentTask, check_labels
from warpgrad.experiments.text_intents.config import HEADLINE, META, TextConfig
from warpgrad.experiments.text_intents.methods import CAPACITY, Sentences, classifier, recipe, task_key
from warpgrad.experiments.text_intents.tuning import Fitted, adapted_by, centroid_head
from warpgrad.keys import isolated_rng
from warpgrad.layers.sentences import Encoder, Head, SentenceClassifier
from warpgrad.model.learner import Learner
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import newest_checkpoint

TESTED_AT = (0, 1, 2, 5, 10, 20, 40, 60, 100)
"""Steps after which a model is tested, and the last."""
TOGETHER = "all labels at once"


def evaluate_on_domains(config: TextConfig, data: Sentences, run: Path) -> dict[str, Any]:
    """Return the result of a run: accuracy on every held-out task, and how well out-of-scope sentences are detected."""
    labels = len(data.text.split(config.seed)[config.split])
    method = trained_method(config, data.encoder, run, max(labels, CAPACITY)) if config.method in META else None
    plain = classifier(config, data.encoder, max(labels, CAPACITY)) if method is None else None
    result: dict[str, Any] = {"metrics": {}, "curves": {}, "seconds_at": {}}
    for shots in config.shots:
        found: dict[str, dict[str, Any]] = {}
        for name, task in held_out_tasks(config, data, shots):
            found[name] = _judged(config, method, plain, task)
        separate = {name: each for name, each in found.items() if not name.startswith(TOGETHER)}
        at = f"_{shots}shot"
        result[f"accuracy{at}"] = {name: each["accuracy"][-1] for name, each in separate.items()}
        result["curves"][f"{shots}"] = {name: each["accuracy"] for name, each in separate.items()}
        result["seconds_at"][f"{shots}"] = np.mean([each["seconds"] for each in separate.values()], axis=0).tolist()
        if len(found) > len(separate):
            result[f"together{at}"] = {
                name: each["accuracy"][-1] for name, each in found.items() if name not in separate
            }
        if config.outside and data.text.out_of_scope:
            result[f"auroc{at}"] = {name: each["auroc"] for name, each in separate.items()}
        for measure in ("accuracy", "together", "auroc"):
            if f"{measure}{at}" in result:
                result["metrics"][f"{measure}{at}"] = float(np.mean(list(result[f"{measure}{at}"].values())))
        result["metrics"][f"seconds{at}"] = result["seconds_at"][f"{shots}"][-1]
    headline = HEADLINE if HEADLINE in config.shots else config.shots[0]
    result["accuracy"] = result[f"accuracy_{headline}shot"]
    # The mean over shots after each number of steps; its maximum on validation domains selects how many to take.
    curve = np.mean([np.mean(list(own.values()), axis=0) for own in result["curves"].values()], axis=0)
    best = 1 + int(curve[1:].argmax()) if config.split == "validation" else len(curve) - 1
    result["metrics"] |= {"accuracy": float(curve[best]), "steps": steps_tested(config.adaptation_steps)[best]}
    return {
        **result,
        "data": data.text.name,
        "data_sha256": data.text.sha256,
        "encoder": Path(config.encoder).name,
        "encoder_sha256": data.encoder.sha256,
        "split": config.split,
        "query": config.query,
        "shots": list(config.shots),
        "domains": sorted({data.text.domains[label] for label in data.text.split(config.seed)[config.split]}),
        "tested_at": steps_tested(config.adaptation_steps),
        # Each method is judged after its last step, and takes at most as many steps as the settings say.
        "headline_steps": "its own",
    }


def steps_tested(steps: int) -> list[int]:
    """Return the steps after which a method that takes `steps` is tested; without steps, its curve is a flat line."""
    if steps == 0:
        return [0, 20]
    return [*(step for step in TESTED_AT if step < steps), steps]


def held_out_tasks(config: TextConfig, data: Sentences, shots: int) -> Iterator[tuple[str, IntentTask]]:
    """Yield the tasks of a split: several support sets of every domain, then of all labels at once.

    Without domains, random sets of labels take their place.
    """
    shape = IntentShape(config.ways, (shots,), query=config.query)
    family = data.family(config, config.split, shape)
    for draw in range(config.draws):
        for name, labels in _domains(config, family, draw).items():
            yield f"{name}/{draw}", family.task(name, labels, shots, task_key(config, name, shots, draw))
    if len(family.domains) > 1 or not family.domains:
        for draw in range(config.together):
            key = task_key(config, TOGETHER, shots, draw)
            yield f"{TOGETHER}/{draw}", family.task(TOGETHER, family.labels, shots, key)


def check_sentences(config: TextConfig) -> None:
    """Refuse labels with too few sentences before any is encoded, rather than after meta-training."""
    text = open_text(config.data)
    split = text.split(config.seed)
    check_labels(text, split[config.split], max(config.shots), " at test (--shots)")
    if config.method in META:
        check_labels(text, split["train"], max(config.train_shots), " in meta-training (--train-shots)")
        check_labels(text, split["validation"], HEADLINE, " in validation")


def _domains(config: TextConfig, family: IntentFamily, draw: int) -> dict[str, list[int]]:
    if family.domains:
        return family.domains
    generator = torch.Generator().manual_seed(task_key(config, "labels", draw))
    ways = min(config.ways, len(family.labels))
    chosen = torch.randperm(len(family.labels), generator=generator)[:ways].tolist()
    return {"labels drawn at random": [family.labels[place] for place in sorted(chosen)]}


def trained_method(config: TextConfig, encoder: Encoder, run: Path, capacity: int = CAPACITY) -> Method:
    """Return the method of a run with its best weights; its head starts at zero, so it takes any number of classes."""
    method = recipe(config, encoder, capacity).method
    path = newest_checkpoint(run)
    state = read_checkpoint(path, method.learner.device)
    stored = state["best"] or state["weights"]
    for group, own in weights(method).items():
        for name in ("head.correction", "head.bias"):
            if name in own and name in stored[group] and len(stored[group][name]) != len(own[name]):
                # Beyond the classes of meta-training: zero, or the initial step size of a rule.
                wide = own[name].detach().clone()
                kept = min(len(stored[group][name]), len(wide))
                wide[:kept] = stored[group][name][:kept]
                stored[group][name] = wide
    load_weights(method, stored, path)
    return method


def validation_scores(config: TextConfig, data: Sentences, method: Method) -> dict[str, float]:
    """Return mean accuracy in per cent and loss on the validation domains at the headline's shots, adapted as at test.

    With only the few steps of meta-training, a start may look best that later steps spoil. On a few hundred sentences
    the loss says more than the accuracy does, so it selects the weights that are kept.
    """
    shape = IntentShape(config.ways, (HEADLINE,), query=config.query)
    family = data.family(config, "validation", shape)
    found = []
    for draw in range(config.validation_draws):
        for name, labels in _domains(config, family, draw).items():
            task = family.task(name, labels, HEADLINE, task_key(config, "validation", name, draw))
            *_, fitted = adapted_points(method, task, config.adaptation_steps)
            found.append(_scores(*fitted(), task, outside=False))
    return {name: float(np.mean([scores[name] for scores in found])) for name in ("accuracy", "loss")}


def _judged(
    config: TextConfig, method: Method | None, plain: SentenceClassifier | None, task: IntentTask
) -> dict[str, Any]:
    """Return accuracy and processor seconds after each of `steps_tested`, and the AUROC at the end."""
    if method is not None:
        points = adapted_points(method, task, config.adaptation_steps)
    else:
        assert plain is not None
        points = adapted_by(config, plain, task)
    steps = steps_tested(config.adaptation_steps)
    accuracies, seconds, scores, spent, began = [], [], {"accuracy": 0.0}, 0.0, time.process_time()
    for k, fitted in enumerate(points):
        spent += time.process_time() - began
        if k in steps:
            began = time.process_time()
            net, head = fitted()
            seconds.append(spent + time.process_time() - began)
            scores = _scores(net, head, task, outside=k == config.adaptation_steps)
            accuracies.append(scores["accuracy"])
        began = time.process_time()
    if config.adaptation_steps == 0:
        accuracies, seconds = 2 * accuracies, 2 * seconds
    return {"accuracy": accuracies, "seconds": seconds, "auroc": scores.get("auroc")}


def adapted_points(method: Method, task: IntentTask, steps: int) -> Iterator[Fitted]:
    """Yield the classifier at θ_0 … θ_K, each with the head fitted to the whole support set."""
    learner = method.learner
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        for point in Trajectory(Adaptation(learner, method.rule, task, 0), steps).points():
            yield partial(_at, learner, point, task)


def _at(learner: Learner, point: Point, task: IntentTask) -> tuple[SentenceClassifier, Head]:
    net = learner.adapted(point.theta, point.buffers)
    assert isinstance(net, SentenceClassifier)
    return net, centroid_head(net, task)


def _scores(net: SentenceClassifier, head: Head, task: IntentTask, *, outside: bool) -> dict[str, float]:
    """Return accuracy and loss on the query set; with `outside`, also the AUROC against out-of-scope sentences.

    The AUROC is that of the largest probability. The sentences it needs are almost as many as the query set.
    """
    asked = [place for own in task.query for place in own]
    labels = torch.tensor([label for label, own in enumerate(task.query) for _ in own])
    others = task.outside if outside else []
    states, mask = task.states.batch([*asked, *others])
    with torch.no_grad():
        logits = F.linear(net.embed(states, mask), *head)
    scores = {
        "accuracy": 100 * float((logits[: len(asked)].argmax(1) == labels).float().mean()),
        "loss": float(F.cross_entropy(logits[: len(asked)], labels)),
    }
    if others:
        surest = logits.softmax(1).amax(1)
        scores["auroc"] = 100 * auroc(surest[: len(asked)], surest[len(asked) :])
    return scores


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the probability that a sentence in scope scores higher than one out of scope; ties count half."""
    scores = torch.cat([inside, outside]).double()
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[inverse]
    above = ranks[: len(inside)].sum() - len(inside) * (len(inside) + 1) / 2
    return float(above / (len(inside) * len(outside)))

"""Every method of the alphabets experiment as a choice of parts: network, partition, rule, objective, initialiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from warpgrad.algorithms import Offline, Online, Unrolled
from warpgrad.algorithms.base import Algorithm
from warpgrad.baselines.finetuning import HeadedTask, JointTraining, MultiHeaded
from warpgrad.errors import WarpgradError
from warpgrad.experiments.networks import begun_as, keyed
from warpgrad.experiments.omniglot_config import OmniglotConfig
from warpgrad.initialisers import FOMAML, Fixed, Initialiser, Leap, Reptile
from warpgrad.layers import OMNIGLOT_WARPS, warp_convnet
from warpgrad.learner import Learner
from warpgrad.meta_optimiser import OptimiserFactory
from warpgrad.method import Group, Method
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD
from warpgrad.rules.base import Learned, Rule
from warpgrad.starts import Start
from warpgrad.tasks.supervised import TaskList


@dataclass(frozen=True)
class Recipe:
    """All that `meta_train` needs besides the tasks."""

    method: Method
    algorithm: Algorithm
    optimiser: Mapping[Group, OptimiserFactory]
    clip: Mapping[Group, float]


def network(config: OmniglotConfig) -> nn.Sequential:
    """The network of App. E without warp-layers."""
    return keyed(config.seed, "network", _convnet(config))


def plain_learner(config: OmniglotConfig, start: Mapping[str, Start] | None = None) -> Learner:
    return Learner(network(config).to(config.device), warp=(), start=start, channels_last=True)


def warped_learner(config: OmniglotConfig) -> Learner:
    """The same network, at the same weights, with warp-layers after its blocks."""
    if config.warp not in OMNIGLOT_WARPS:
        raise WarpgradError(f"warp='{config.warp}' is unknown; choose one of {', '.join(OMNIGLOT_WARPS)}.")
    warped = keyed(config.seed, "warp", partial(_convnet(config), warp=OMNIGLOT_WARPS[config.warp]))
    module = begun_as(network(config), warped, config.warp_init)
    start: dict[str, Start] = {"*": "fixed"} if config.theta0 == "random" else {}
    if config.warp.endswith("film"):
        start["*film"] = "zero"
    return Learner(module.to(config.device), start=start, channels_last=True)


def multi_headed_learner(config: OmniglotConfig) -> Learner:
    """The body of the network with a head of its own for each training alphabet."""
    plain = network(config)
    head = plain.get_submodule("head")
    assert isinstance(head, nn.Linear)
    sizes = head.in_features, head.out_features
    heads = keyed(config.seed, "heads", lambda: [nn.Linear(*sizes) for _ in range(config.tasks)])
    module = MultiHeaded(plain[:-1], heads).to(config.device)
    return Learner(module, warp=(), allow_unused=True, channels_last=True)


def inner_rule(config: OmniglotConfig) -> Rule:
    lr = config.test_lr
    return SGD(Learned(lr) if config.learned_alpha else lr, momentum=config.momentum)


def recipe(config: OmniglotConfig) -> Recipe:
    """How a method is meta-trained."""
    theta0 = partial(torch.optim.SGD, lr=config.outer_lr)
    clip: dict[Group, float] = {}
    rule = inner_rule(config)
    if config.method == "warp-leap":
        objective = Exact() if config.objective == "exact" else Approximate()
        initialiser = Leap() if config.theta0 == "learned" else Fixed()
        optimiser: dict[Group, OptimiserFactory] = {
            "theta0": theta0,
            "phi": partial(torch.optim.SGD, lr=config.meta_lr),
            "rule": partial(torch.optim.SGD, lr=config.alpha_lr),
        }
        method = Method(warped_learner(config), rule, objective, initialiser)
        return Recipe(method, _warp_algorithm(config), optimiser, {"rule": config.alpha_clip})
    if config.method == "finetuning":
        algorithm: Algorithm = JointTraining(steps=config.steps, tasks=config.meta_batch)
        return Recipe(Method(multi_headed_learner(config), rule), algorithm, {"theta0": theta0}, clip)
    if config.method == "maml":
        algorithm = Unrolled(steps=config.maml_steps, tasks=config.meta_batch)
        return Recipe(Method(plain_learner(config), rule), algorithm, {"theta0": theta0}, clip)
    initialisers: dict[str, Initialiser] = {"leap": Leap(), "reptile": Reptile(), "fomaml": FOMAML()}
    method = Method(plain_learner(config), rule, None, initialisers[config.method])
    return Recipe(method, Online(steps=config.steps, tasks=config.meta_batch), {"theta0": theta0}, clip)


def training_tasks(config: OmniglotConfig, tasks: TaskList) -> TaskList:
    """The training alphabets as the method sees them: each with a head of its own for finetuning."""
    if config.method != "finetuning":
        return tasks
    return TaskList([HeadedTask(task, place) for place, task in enumerate(tasks.tasks)])


def finetuned_learner(config: OmniglotConfig, trained: Learner) -> Learner:
    """The jointly trained body in a plain network whose head is drawn afresh for every alphabet."""
    learner = plain_learner(config, {"head": "fresh"})
    body = trained.module.get_submodule("body").state_dict()
    learner.module.load_state_dict({**learner.module.state_dict(), **body})
    return learner


def distance_names(learner: Learner) -> Sequence[str]:
    """The parameters that count in distances: all of θ but task embeddings, which start at 0."""
    return [name for name, policy in learner.starts.items() if policy != "zero"]


def _warp_algorithm(config: OmniglotConfig) -> Algorithm:
    if config.algorithm == "online":
        return Online(steps=config.steps, tasks=config.meta_batch)
    return Offline(steps=config.steps, tasks=config.meta_batch, samples=config.samples)


def _convnet(config: OmniglotConfig) -> partial[nn.Sequential]:
    return partial(warp_convnet, 1, config.characters, widths=(config.filters,) * 4, warp=None)

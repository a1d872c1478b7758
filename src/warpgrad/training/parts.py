"""The parts of a training in plain values: to compare a run with its continuation, and to build a method again.

A part (rule, objective, initialiser, algorithm) is described by its class and by the arguments of its constructor that
it keeps under their own names, as all parts of this library do. What a part has learned is not in its description.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.initialisers import FOMAML, MAML, Fixed, GaussianPrior, Initialiser, Leap, MultiTask, Reptile
from warpgrad.model.learner import Learner
from warpgrad.objectives import Approximate, Exact, InPlace, Objective
from warpgrad.rules import SGD, Adam, Clip, Learned, MaskedSGD, MetaCurvature, MetaSGD, Rule
from warpgrad.tasks.base import TaskFamily

P = TypeVar("P", Rule, Objective, Initialiser)

Description = dict[str, Any]
"""{"class": name, "arguments": {name: plain value or description}}."""

_KNOWN: dict[str, type[Rule | Objective | Initialiser]] = {
    kind.__name__: kind
    for kind in (
        *(SGD, Adam, Clip, MetaSGD, MetaCurvature, MaskedSGD),
        *(Exact, Approximate, InPlace),
        *(Fixed, FOMAML, MAML, Leap, MultiTask, Reptile, GaussianPrior),
    )
}
"""Classes that a file may name: nothing else is ever called because a file says so."""
_NO_SETTING = ("self", "backend", "chunk", "budget")
"""Arguments that say how something is computed, not what: a run may resume under another backend."""

_KERNELS = ("foreach", "fused", "capturable", "differentiable")
"""The same for the optimisers of torch."""


def described(part: object) -> Description:
    """Describe a part in plain values."""
    return {"class": type(part).__name__, "arguments": _arguments(part)}


def _arguments(part: object) -> dict[str, Any]:
    names = [name for name in inspect.signature(type(part).__init__).parameters if name not in _NO_SETTING]
    found = {name: _plain(getattr(part, name)) for name in names if hasattr(part, name)}
    learned = part.meta if isinstance(part, Rule) else {}
    # `SGD(lr=Learned(0.1))` keeps the start value as `lr`; what says that it is learned is the meta-parameter.
    return {
        name: {"learned": value} if name in learned and isinstance(value, float) else value
        for name, value in found.items()
    }


def _plain(value: Any) -> Any:
    """Turn a value into JSON that is the same in every process."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, Rule | Objective | Initialiser):
        return described(value)
    return function_name(value) if callable(value) else type(value).__name__


def function_name(value: Any) -> str:
    """Name a function or class, with the keywords that a `functools.partial` gives it."""
    if isinstance(value, partial):
        words = [*map(repr, value.args), *(f"{name}={_plain(item)!r}" for name, item in value.keywords.items())]
        return f"{function_name(value.func)}({', '.join(words)})"
    return str(getattr(value, "__qualname__", type(value).__name__))


def rebuilt(description: Description, kind: Callable[..., P], what: str) -> P:
    """Build the described part again. A part that is not of this library has to be built by the user."""
    assert isinstance(kind, type), "Rule, Objective or Initialiser"
    name = description["class"]
    found = _KNOWN.get(name)
    if found is None or not issubclass(found, kind):
        raise WarpgradError(f"the {what} is {name}, which is not in this version of warpgrad: pass {what}={name}(...).")
    arguments: dict[str, Any] = {}
    for argument, value in description["arguments"].items():
        if isinstance(value, dict) and value.keys() == {"learned"}:
            arguments[argument] = Learned(value["learned"])
        elif isinstance(value, dict) and value.keys() == {"class", "arguments"}:
            arguments[argument] = rebuilt(value, kind, argument)  # a rule in a rule, an initialiser in a prior
        else:
            arguments[argument] = tuple(value) if isinstance(value, list) else value
    try:
        part: Any = found(**arguments)
    except (TypeError, ValueError) as error:
        raise WarpgradError(
            f"the {what} {name}({', '.join(map(str, arguments))}) cannot be built in this version of warpgrad "
            f"({error}): pass {what}=."
        ) from error
    built: P = part
    return built


def method_parts(method: Method) -> dict[str, Any]:
    """Return a method without its learner, in plain values, from which `rebuilt` can make it again."""
    return {
        "rule": described(method.rule),
        "objective": None if method.objective is None else described(method.objective),
        "initialiser": described(method.initialiser),
        "weight": method.weight,
    }


def training_settings(method: Method, algorithm: Algorithm, update: MetaOptimiser, tasks: TaskFamily) -> dict[str, Any]:
    """Return all that decides the numbers of a training, by dotted names: what a run and its continuation must share.

    The step size and the other settings of an optimiser are read off the optimiser itself, whatever made it.
    """
    found: dict[str, Any] = {"weight": method.weight, "tasks": function_name(type(tasks))}
    _flatten("algorithm", described(algorithm), found)
    for name, part in (("rule", method.rule), ("objective", method.objective), ("initialiser", method.initialiser)):
        if part is None:
            found[name] = None
        else:
            _flatten(name, described(part), found)
    for group, optimiser in update.optimisers.items():
        own = {name: _plain(value) for name, value in optimiser.defaults.items() if name not in _KERNELS}
        _flatten(f"optimiser.{group}", {"class": type(optimiser).__name__, "arguments": own}, found)
        found[f"clip.{group}"] = update.clip.get(group)
    for schedule in update.schedules[:1]:
        own = {name: _plain(value) for name, value in vars(schedule).items() if not name.startswith("_")}
        changing = ("optimizer", "last_epoch", "base_lrs", "verbose", "best", "num_bad_epochs", "cooldown_counter")
        arguments = {name: value for name, value in own.items() if name not in changing}
        _flatten("schedule", {"class": type(schedule).__name__, "arguments": arguments}, found)
    _flatten_learner(method.learner, found)
    return found


def with_config(made_of: Mapping[str, Any], config: Mapping[str, Any], init_from: str | Path | None) -> dict[str, Any]:
    """Merge the derived settings with the user's own; where names are equal, the user's becomes config.NAME."""
    own = {f"config.{name}" if name in made_of else name: value for name, value in config.items()}
    begin = {} if init_from is None else {"init_from": str(init_from)}
    return {**made_of, **begin, **own}


def _flatten(prefix: str, description: Description, into: dict[str, Any]) -> None:
    into[prefix] = description["class"]
    for name, value in description["arguments"].items():
        if isinstance(value, dict) and value.keys() == {"class", "arguments"}:
            _flatten(f"{prefix}.{name}", value, into)
        else:
            into[f"{prefix}.{name}"] = value


def _flatten_learner(learner: Learner, into: dict[str, Any]) -> None:
    into["learner"] = type(learner.module).__name__
    into["learner.batch_norm"] = learner.batch_norm
    for name, group in (("theta", learner.theta0), ("phi", learner.phi), ("constant", learner.constants)):
        into[f"learner.{name}"] = _fingerprint(group)
    policies = sorted((policy, name) for name, policy in learner.starts.items() if policy != "learned")
    into["learner.start"] = {policy: [name for own, name in policies if own == policy] for policy, _ in policies}


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Summarise parameters: how many, how many numbers in all, and a short digest of their names and shapes."""
    lines = sorted(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
    return f"{len(tensors)} parameters, {sum(value.numel() for value in tensors.values())} numbers ({digest})"

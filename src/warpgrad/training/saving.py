"""`save` and `load`: a method on disk, for use in another program or on another device.

    wg.save("warp.safetensors", method)
    method = wg.load("warp.safetensors", wg.Learner(MyModel(), warp="middle"))   # a fresh process, the user's own code
    method = wg.load_run("runs/mine", learner)                                   # the same from a run directory

One safetensors file holds all tensors, the description of the method as JSON in its header, and a checksum of both.
Nothing is pickled, and the only classes that are built because a file names them are those of this library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpgrad.algorithms.method import Method, load_weights, weights
from warpgrad.errors import WarpgradError, expect, file_path, understood
from warpgrad.initialisers import Initialiser
from warpgrad.model.learner import Learner
from warpgrad.objectives import Objective
from warpgrad.rules import Rule
from warpgrad.training import checkpoint
from warpgrad.training.parts import method_parts, rebuilt
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.version import __version__


def save(path: str | Path, method: Method) -> None:
    """Write what was meta-learned (θ0, φ, buffers, the rule's parameters, a prior) and what the method is made of.

    The module's code is not written: the program that loads the file builds the module.

    Example:
        >>> wg.save(folder / "warp.safetensors", method)
        >>> wg.load(folder / "warp.safetensors", learner).rule.lr
        0.1
    """
    expect(method, Method, "method", "Method(learner, SGD(0.1), Exact())")
    content = {"version": __version__, "parts": method_parts(method), "weights": weights(method)}
    checkpoint.write_checkpoint(file_path(path, "path", "warp.safetensors"), content)


def load(
    path: str | Path,
    learner: Learner,
    *,
    rule: Rule | None = None,
    objective: Objective | None = None,
    initialiser: Initialiser | None = None,
) -> Method:
    """Load the method that `save` wrote, to the learner's device; the module gets the saved θ0, φ and buffers.

    Args:
        path: A file that `save` wrote, or a checkpoint of a run.
        learner: Built by your own code, with the parameter names and shapes that were saved.
        rule: Replaces the rule that the file describes; needed where that is a class of your own.
        objective: The same for the objective.
        initialiser: The same for the initialiser.

    Example:
        >>> wg.save(folder / "warp.safetensors", method)
        >>> fitted = wg.adapt(learner, task, rule=wg.load(folder / "warp.safetensors", learner).rule, steps=5)
    """
    path = file_path(path, "path", "warp.safetensors")
    _check_kinds(learner, rule, objective, initialiser)
    with understood(path):
        return _built(path, checkpoint.read_checkpoint(path, learner.device), learner, rule, objective, initialiser)


def load_run(
    path: str | Path,
    learner: Learner,
    *,
    rule: Rule | None = None,
    objective: Objective | None = None,
    initialiser: Initialiser | None = None,
) -> Method:
    """Load the method of a run, with its best weights where validation chose some.

    Args:
        path: A run directory.
        learner: As for `load`.
        rule: As for `load`.
        objective: As for `load`.
        initialiser: As for `load`.

    Example:
        >>> records = wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                         meta_steps=2, run=folder / "mine")
        >>> type(wg.load_run(folder / "mine", learner).initialiser).__name__
        'Leap'
    """
    path = file_path(path, "path", "runs/mine")
    if not (path / "config.json").exists():
        raise WarpgradError(f"{path} is not a run directory; pass one that meta_train(run=...) wrote, or use load.")
    return load(newest_checkpoint(path), learner, rule=rule, objective=objective, initialiser=initialiser)


def load_learner(method: Method, path: Path) -> Learner:
    """Load the learner of a run, with its best weights where validation chose some."""
    state = checkpoint.read_checkpoint(path, method.learner.device)
    with understood(path):
        load_weights(method, state["best"] or state["weights"], path)
    return method.learner


def load_start(method: Method, path: str | Path) -> None:
    """Load what another run, or a saved file, has learned into a method whose other settings may differ.

    The module's parameters must be there under their names. A rule or a prior takes over its parameters where names and
    shapes are equal, and otherwise keeps its initial values.
    """
    path = Path(path)
    source = newest_checkpoint(path) if path.is_dir() else path
    state = checkpoint.read_checkpoint(source, method.learner.device)
    with understood(source):
        own, given = weights(method), dict(_chosen(state, source))
        for group in ("rule", "prior"):
            if _shapes(given.get(group) or {}) != _shapes(own[group]):
                given[group] = own[group]
        load_weights(method, given, source)


def _check_kinds(
    learner: Learner, rule: Rule | None, objective: Objective | None, initialiser: Initialiser | None
) -> None:
    expect(learner, Learner, "learner", "Learner(MyModel(), warp=...)")
    for part, kind, name, example in (
        (rule, Rule, "rule", "SGD(0.1)"),
        (objective, Objective, "objective", "Exact()"),
        (initialiser, Initialiser, "initialiser", "Leap()"),
    ):
        if part is not None:
            expect(part, kind, name, example)


def _built(
    path: Path,
    state: Mapping[str, Any],
    learner: Learner,
    rule: Rule | None,
    objective: Objective | None,
    initialiser: Initialiser | None,
) -> Method:
    parts, written = state.get("parts"), state.get("version", "an earlier version")
    if parts is None and (rule is None or initialiser is None):
        raise WarpgradError(
            f"{path} was written by warpgrad {written}, which does not record the parts of the method; pass rule=, "
            "initialiser= and, where there was one, objective=."
        )
    try:
        kept = parts or {"objective": None, "weight": 1.0}
        method = Method(
            learner,
            rule or rebuilt(kept["rule"], Rule, "rule"),
            objective or (kept["objective"] and rebuilt(kept["objective"], Objective, "objective")),
            initialiser or rebuilt(kept["initialiser"], Initialiser, "initialiser"),
            kept["weight"],
        )
    except WarpgradError as error:
        raise WarpgradError(f"{path}, written by warpgrad {written} and read by {__version__}: {error}") from error
    load_weights(method, _chosen(state, path), path)
    return method


def _chosen(state: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the best weights of a stored state where there are any, otherwise the last ones."""
    if "weights" not in state:
        raise WarpgradError(f"{path} contains no method: pass a file that wg.save(...) wrote, or a checkpoint.")
    chosen: Mapping[str, Any] = state.get("best") or state["weights"]
    return chosen


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}

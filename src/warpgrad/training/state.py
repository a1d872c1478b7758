"""Everything that meta-training carries from one meta-step to the next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.errors import NonFiniteError, WarpgradError, integer, real, require
from warpgrad.model.learner import Learner
from warpgrad.tensors import Tensors
from warpgrad.training.checkpoint import cloned, read_checkpoint, understood
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.parts import method_parts
from warpgrad.version import __version__

Weights = dict[str, Tensors]


class TrainingState:
    """Weights, optimiser and schedule states, the algorithm's own state, and counters."""

    def __init__(
        self, method: Method, algorithm: Algorithm, update: MetaOptimiser, early_stopping: EarlyStopping | None
    ) -> None:
        self.method, self.algorithm, self.update = method, algorithm, update
        self.watch = None if early_stopping is None else early_stopping.watch()
        self.halted: str | None = None
        """Why a callback has ended this training; the same call again goes on, and asks the callback again."""
        self.planned: int | None = 0
        """The meta-steps asked for; None in checkpoints of earlier versions, which do not say it."""
        self.step = 0
        """Meta-steps done."""
        self.seconds = 0.0
        """Time spent in them, earlier processes included."""
        self.offset = 0
        """Bytes of metrics.jsonl that belong to them."""
        self.digest: str | None = None
        """The checksum of those bytes, as `RunDirectory.digest`."""
        self._best: Weights | None = None
        self._made_of = {"version": __version__, "parts": method_parts(method)}

    @property
    def stopped(self) -> str | None:
        """Why the run has stopped before its last meta-step; None while it goes on."""
        if self.watch is not None and self.watch.stop:
            return self.watch.reason
        return self.halted

    def plan(self, meta_steps: int) -> None:
        """Where more meta-steps are asked for than when early stopping ended the run, it goes on."""
        if self.step == 0:
            self.algorithm.plan(meta_steps)
        if self.watch is not None and self.watch.stop:
            if self.planned is None or meta_steps <= self.planned:
                return
            self.watch.renew()
        self.planned = meta_steps

    def keep_best(self) -> None:
        self._best = cloned(weights(self.method))

    def restore_best(self) -> bool:
        """Go back to the parameters with the best validation score; whether there were any."""
        if self._best is None:
            return False
        load_weights(self.method, self._best)
        return True

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "offset": self.offset,
            "digest": self.digest,
            "weights": weights(self.method),
            "best": self._best,
            "update": self.update.state(),
            "algorithm": self.algorithm.state(),
            "backend": self.algorithm.backend.state(),
            "early_stopping": None if self.watch is None else self.watch.state(),
            "planned": self.planned,
            **self._made_of,
        }

    def load(self, state: Mapping[str, Any], source: Path) -> None:
        """Go on from a checkpoint; one of another model is refused before anything is changed."""
        with understood(source):
            self._load(state, source)

    def _load(self, state: Mapping[str, Any], source: Path) -> None:
        load_weights(self.method, state["weights"], source)
        self.step, self.seconds = integer(state["step"], "step"), real(state["seconds"], "seconds")
        self.offset, self.digest = integer(state["offset"], "offset"), state.get("digest")
        self.update.load_state(state["update"])
        self.algorithm.load_state(state["algorithm"])
        # Checkpoints of earlier versions do not say it: nothing was compiled then.
        self.algorithm.backend.load_state(state.get("backend") or {"form": "traced", "settings": None})
        # The best parameters are those of this training's own measure: another one, or none, has seen no best yet.
        watched = state["early_stopping"]
        same = self.watch is not None and watched is not None and self.watch.load_state(watched)
        self._best = state["best"] if same else None
        self.planned = state.get("planned")


def weights(method: Method) -> Weights:
    """All that was meta-learned: the module (θ0, φ, buffers), the rule's parameters, the prior's."""
    module = method.learner.module
    return {
        "module": {**dict(module.named_parameters()), **dict(module.named_buffers())},
        "rule": dict(method.rule.meta),
        "prior": dict(method.initialiser.meta),
    }


def load_weights(method: Method, state: Mapping[str, Any], source: Path | None = None) -> None:
    """Put stored weights in place; names and shapes must be those of this method."""
    with understood(source):
        _check_weights(
            targets := weights(method), state, f"checkpoint {source}" if source is not None else "the checkpoint"
        )
        with torch.no_grad():
            for group, own in targets.items():
                for name, value in own.items():
                    value.copy_(state[group][name])


def _check_weights(targets: Weights, state: Mapping[str, Any], where: str) -> None:
    for group, own in targets.items():
        given = state.get(group) or {}
        for name in sorted(set(own) ^ set(given)):
            side = "has no" if name in own else "has an unknown"
            raise WarpgradError(f"{where} {side} {group} entry '{name}': it belongs to another model or method.")
        for name, value in own.items():
            require(
                value.shape == given[name].shape,
                f"{where} has {group} entry '{name}' of shape {tuple(given[name].shape)}, the model "
                f"{tuple(value.shape)}: it belongs to another model.",
            )
            # Another precision is a matter of the learner that is loaded into; another kind of number is none.
            require(
                torch.can_cast(given[name].dtype, value.dtype)
                and given[name].is_floating_point() == value.is_floating_point(),
                f"{where} has {group} entry '{name}' in {given[name].dtype}, the model in {value.dtype}: it belongs to "
                "another model.",
            )
            if not is_sound(given[name], parameter=isinstance(value, torch.nn.Parameter) or group != "module"):
                raise NonFiniteError(
                    f"{where} has {group} entry '{name}' with numbers that are none (NaN or infinite): training had "
                    "diverged; take smaller steps and start over with --fresh."
                )


def is_sound(value: torch.Tensor, *, parameter: bool) -> bool:
    """Whether stored numbers can be used: none is NaN and, in a parameter, none infinite; a mask in a buffer may be."""
    if not (value.is_floating_point() or value.is_complex()):
        return True
    return bool((value.isfinite() if parameter else ~value.isnan()).all())


def load_learner(method: Method, path: Path) -> Learner:
    """The learner of a run as it was meant to be used: with its best weights where validation chose some."""
    state = read_checkpoint(path, method.learner.device)
    with understood(path):
        load_weights(method, state["best"] or state["weights"], path)
    return method.learner

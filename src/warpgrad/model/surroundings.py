"""What surrounds a forward pass and could change its numbers without a word.

`torch.compile` has no second derivative; Python's own random numbers are not keyed; a cache of parametrisations
outlives θ; an embedding with `max_norm` writes to its weight. Each is set right, or named.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from warpgrad.errors import WarpgradError


class Surroundings:
    """What a module's forward passes run in."""

    def __init__(self, module: nn.Module) -> None:
        self._compiled = any(
            type(child).__name__ == "OptimizedModule" or getattr(child, "_compiled_call_impl", None) is not None
            for child in module.modules()
        )
        self.outside = OutsideRandomness(type(module).__name__)

    def harmless(self) -> bool:
        """Whether there is nothing to set right, which is asked before every pass."""
        return not (self._compiled or self.outside.looks or parametrize._cache_enabled)

    @contextmanager
    def set_right(self) -> Iterator[None]:
        """A forward pass inside the block has the right numbers, or is refused."""
        if parametrize._cache_enabled:
            raise WarpgradError(
                "torch.nn.utils.parametrize.cached() around meta-training or adaptation would serve the first "
                "parameters for ever: use it inside the model's forward."
            )
        with self._uncompiled(), self.outside.watched():
            yield

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """A compiled graph has no second derivative, and would be compiled again for every θ."""
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()


def refuse_rewriting(module: nn.Module, constant: Collection[str]) -> None:
    """Refuse an embedding with `max_norm`: it rewrites rows of its weight, θ_k or φ, in every forward pass."""
    for path, child in module.named_modules():
        name = f"{path}.weight" if path else "weight"
        if getattr(child, "max_norm", None) is not None and isinstance(child, nn.Embedding | nn.EmbeddingBag):
            if name in constant:
                continue
            raise WarpgradError(
                f"module '{path}' is an {type(child).__name__} with max_norm={child.max_norm}, which rewrites its "
                "weight in every forward pass: leave max_norm out, or bound the weight by a parametrisation."
            )


@contextmanager
def copyable(module: nn.Module) -> Iterator[None]:
    """Inside the block the module can be copied, whatever results a hook has left in its attributes.

    The older `torch.nn.utils.weight_norm` keeps the weight of the last pass, which is no leaf, as an attribute.
    """
    kept: list[tuple[nn.Module, str, Tensor]] = []
    for child in module.modules():
        for name, value in vars(child).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                kept.append((child, name, value))
    try:
        for child, name, value in kept:
            vars(child)[name] = value.detach()
        yield
    finally:
        for child, name, value in kept:
            vars(child)[name] = value


class OutsideRandomness:
    """Watches whether a model draws random numbers that no key reaches: Python's `random`, or numpy's."""

    LOOKS = 4
    """Forward passes that are watched: a look costs as much as a small layer."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.looks = self.LOOKS
        """How many passes are still to be watched."""
        self.source: str | None = None
        """Where the model draws from; None where it does not, as far as was seen."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look whether the block draws, and warn once."""
        if self.looks == 0:
            yield
            return
        self.looks -= 1
        before = random_states()
        yield
        source = changed(before)
        if source is not None:
            self.source, self.looks = source, 0
            warnings.warn(
                f"the forward pass of {self._model} draws from {source}, which no key reaches: its numbers will not "
                "repeat; draw with torch.rand, which every pass seeds.",
                stacklevel=2,
            )


def random_states() -> tuple[Any, Any]:
    """Where Python's and numpy's global generators stand."""
    return random.getstate(), _numpy_state()


def changed(before: tuple[Any, Any]) -> str | None:
    """Which of the generators has been drawn from since."""
    if random.getstate() != before[0]:
        return "Python's random"
    return None if _numpy_state() == before[1] else "numpy.random"


def _numpy_state() -> tuple[Any, ...]:
    kind, key, position, *gauss = np.random.get_state()  # noqa: NPY002 - the legacy generator is the global one
    return (kind, bytes(np.asarray(key)), position, *gauss)

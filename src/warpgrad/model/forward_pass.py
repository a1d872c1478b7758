"""The environment of a forward pass: other tensors in the module's places, and nothing that changes its numbers.

`ModuleTree` finds what the module keeps. `Swapper` puts θ, φ and buffers in its places, `RecomputedUnder` does so again
for what activation checkpointing recomputes. `Surroundings` handles what could change numbers silently: `torch.compile`
has no second derivative, Python's own random numbers are not keyed, a cache of parametrisations outlives θ, and an
embedding with `max_norm` writes to its weight.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor, nn
from torch.nn.utils import parametrize

from warpgrad.errors import WarpgradError
from warpgrad.tensors import Tensors


class ModuleTree:
    """What `named_modules`, `named_parameters` and `named_buffers` return, with the paths looked up once.

    Every task asks for its model's tensors, and on a small model the walk would be a large part of that. Where a child
    was added, removed or replaced since, the paths are looked up again.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._walk()

    def modules(self) -> list[tuple[str, nn.Module]]:
        """Return every submodule with its path, the module itself first."""
        if any(child._modules != children for child, children in self._children):
            self._walk()
        return self._paths

    def tensors(self, kind: Literal["_parameters", "_buffers"]) -> Tensors:
        """Return the parameters or the buffers as they are now; a tied one under its first name."""
        found: Tensors = {}
        seen: set[int] = set()
        for path, child in self.modules():
            own: dict[str, Tensor | None] = getattr(child, kind)
            for local, tensor in own.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"{path}.{local}" if path else local] = tensor
        return found

    def _walk(self) -> None:
        self._paths = list(self._module.named_modules())
        self._children = [(child, dict(child._modules)) for _, child in self._paths]


Slot = tuple[dict[str, Any], str]
"""Where a module keeps a tensor: its dict, and the key in it."""


class Swapper:
    """Calls a module with other tensors in the places of its parameters and buffers; a tied one has several places.

    This is what `torch.func.functional_call` does, with the places looked up once: adaptation calls a small model
    thousands of times a second, and the look-up would be a large part of that time.
    """

    def __init__(self, module: nn.Module) -> None:
        names = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
        self._slots: dict[str, list[Slot]] = {name: [] for name in names.values()}
        for path, child in module.named_modules():
            if isinstance(child, torch.jit.ScriptModule):
                raise WarpgradError(
                    f"module '{path}' is compiled by TorchScript, so its parameters cannot be replaced; "
                    "pass the Python module instead."
                )
            for tensors in (child._parameters, child._buffers):
                for local, tensor in tensors.items():
                    if tensor is not None:
                        self._slots[names[id(tensor)]].append((tensors, local))

    @contextmanager
    def holding(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        """Put these tensors into the module inside the block, and its own back afterwards.

        Where the module assigns a new tensor to one of its buffers, that is in `tensors` afterwards.
        """
        kept: list[tuple[str, dict[str, Any], str, Any]] = []
        try:
            for name, tensor in tensors.items():
                for owner, local in self._slots[name]:
                    kept.append((name, owner, local, owner[local]))
                    owner[local] = tensor
            yield
        finally:
            for name, owner, local, own in kept:
                tensors[name] = owner[local]
                owner[local] = own


Again = Callable[[], AbstractContextManager[Any]]

# `checkpoint` looks both up when it is called, however a user imported it.
_WITHOUT_REENTRANT = "_checkpoint_without_reentrant_generator"
_REENTRANT = "CheckpointFunction"
_own_generator: Any = getattr(checkpoints, _WITHOUT_REENTRANT)


class RecomputedUnder:
    """What the block checkpoints is recomputed inside `again()`, a context in which the module holds the same tensors.

    `torch.utils.checkpoint` runs a part of a model again in the backward pass. By then the module has its own tensors
    back, and the recomputation would use those. The variant `use_reentrant=True` starts a backward pass inside another,
    for which PyTorch has neither `torch.autograd.grad` nor a second derivative: it is refused where gradients are on.
    Every forward pass enters this block, so it is a class, which is cheaper than a generator.
    """

    __slots__ = ("_again", "_outer")

    def __init__(self, again: Again) -> None:
        self._again = again

    def __enter__(self) -> None:
        self._outer = getattr(checkpoints, _WITHOUT_REENTRANT), getattr(checkpoints, _REENTRANT)
        setattr(checkpoints, _WITHOUT_REENTRANT, self._generator)
        setattr(checkpoints, _REENTRANT, _Refused)

    def __exit__(self, *error: object) -> None:
        setattr(checkpoints, _WITHOUT_REENTRANT, self._outer[0])
        setattr(checkpoints, _REENTRANT, self._outer[1])

    def _generator(self, fn: Any, preserve_rng_state: bool, context_fn: Any, *rest: Any, **kwargs: Any) -> Any:
        del preserve_rng_state
        # Without the generator's state, the recomputation would draw other dropout masks than the forward pass.
        return _own_generator(fn, True, _joined(context_fn, self._again), *rest, **kwargs)


def _joined(context_fn: Any, again: Again) -> Any:
    """Return the user's contexts of the forward pass and of the recomputation, the latter inside `again()`."""

    def contexts() -> tuple[Any, Any]:
        forward, recomputation = context_fn()
        if isinstance(forward, checkpoints._CachingTorchDispatchMode):
            # Selective checkpointing keeps results for one backward pass, and here there may be several.
            forward = recomputation = nullcontext()
        return forward, _Recomputation(again, recomputation)

    return contexts


class _Recomputation(AbstractContextManager[None]):
    """Entered once for every backward pass through the checkpoint."""

    def __init__(self, again: Again, own: Any) -> None:
        self._again, self._own = again, own
        self._stacks: list[ExitStack] = []

    def __enter__(self) -> None:
        stack = ExitStack()
        stack.enter_context(self._again())
        stack.enter_context(self._own)
        self._stacks.append(stack)

    def __exit__(self, *error: Any) -> bool | None:
        return self._stacks.pop().__exit__(*error)


class _Refused:
    """Takes the place of the reentrant variant."""

    @staticmethod
    def apply(*arguments: Any) -> Any:
        if torch.is_grad_enabled():
            raise WarpgradError(
                "the model uses activation checkpointing with use_reentrant=True, which does not work with "
                "torch.autograd.grad: pass use_reentrant=False to torch.utils.checkpoint (Hugging Face: "
                "gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False}))."
            )
        function, _, *inputs = arguments
        return function(*inputs)  # without gradients nothing is recomputed


class Surroundings:
    """The surroundings of a module's forward passes."""

    def __init__(self, module: nn.Module) -> None:
        self._compiled = any(
            type(child).__name__ == "OptimizedModule" or getattr(child, "_compiled_call_impl", None) is not None
            for child in module.modules()
        )
        self.outside = OutsideRandomness(type(module).__name__)

    def harmless(self) -> bool:
        """Return whether there is nothing to correct; checked before every pass."""
        return not (self._compiled or self.outside.looks or parametrize._cache_enabled)

    @contextmanager
    def set_right(self) -> Iterator[None]:
        """Make forward passes inside the block compute the right numbers, or raise."""
        if parametrize._cache_enabled:
            raise WarpgradError(
                "torch.nn.utils.parametrize.cached() around meta-training or adaptation would always return "
                "the initial parameters: use it inside the model's forward."
            )
        with self._uncompiled(), self.outside.watched():
            yield

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """Return a block without compiled graphs, which have no second derivative and recompile for every θ."""
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()


def refuse_rewriting(module: nn.Module, constant: Collection[str]) -> None:
    """Raise for an embedding with `max_norm`, which rewrites rows of its weight, θ_k or φ, in every forward pass."""
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
    """Make the module copyable inside the block, whatever results a hook has left in its attributes.

    The older `torch.nn.utils.weight_norm` keeps the weight of the last pass, which is not a leaf, as an attribute.
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
    """Watches whether a model draws random numbers that keys do not control: Python's `random`, or numpy's."""

    LOOKS = 4
    """How many forward passes are watched; watching one costs as much as a small layer."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.looks = self.LOOKS
        """How many passes are still to be watched."""
        self.source: str | None = None
        """Where the model draws from; None where it does not, as far as was seen."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check whether the block draws such numbers, and warn once."""
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
                f"the forward pass of {self._model} draws from {source}, which keys do not control, so its results "
                "are not reproducible: draw with torch.rand, which is seeded for every pass.",
                stacklevel=2,
            )


def random_states() -> tuple[Any, Any]:
    """Return the states of Python's and numpy's global generators."""
    return random.getstate(), _numpy_state()


def changed(before: tuple[Any, Any]) -> str | None:
    """Return which of the generators has been drawn from since, if any."""
    if random.getstate() != before[0]:
        return "Python's random"
    return None if _numpy_state() == before[1] else "numpy.random"


def _numpy_state() -> tuple[Any, ...]:
    kind, key, position, *gauss = np.random.get_state()  # noqa: NPY002 - the legacy generator is the global one
    return (kind, bytes(np.asarray(key)), position, *gauss)

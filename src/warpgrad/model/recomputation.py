"""Activation checkpointing inside a user's module.

`torch.utils.checkpoint` runs a part of a model again in the backward pass. By then a learner has put the module's own
parameters back, and what is computed again would be computed with those. So a learner tells a checkpoint, while the
module runs, how to bring its tensors back for the second time.

    with RecomputedUnder(again):                      # again() -> a context in which the module holds the same tensors
        output = module(x)

The variant `use_reentrant=True` starts a backward pass of its own inside another, for which PyTorch has neither
`torch.autograd.grad` nor a second derivative: it is refused where gradients are on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints

from warpgrad.errors import WarpgradError

Again = Callable[[], AbstractContextManager[Any]]

# `checkpoint` looks both up when it is called, however a user imported it.
_WITHOUT_REENTRANT = "_checkpoint_without_reentrant_generator"
_REENTRANT = "CheckpointFunction"
_own_generator: Any = getattr(checkpoints, _WITHOUT_REENTRANT)


class RecomputedUnder:
    """What the block checkpoints is computed again inside `again()`. A class, because every forward pass enters one."""

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
        # A mask that is drawn anew in the recomputation would be another than that of the forward pass.
        return _own_generator(fn, True, _joined(context_fn, self._again), *rest, **kwargs)


def _joined(context_fn: Any, again: Again) -> Any:
    """The user's contexts of the forward pass and of the recomputation, the latter inside `again()`."""

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
    """Stands where the reentrant variant does."""

    @staticmethod
    def apply(*arguments: Any) -> Any:
        if torch.is_grad_enabled():
            raise WarpgradError(
                "the model uses activation checkpointing with use_reentrant=True, through which PyTorch gives no "
                "gradients by name: pass use_reentrant=False to torch.utils.checkpoint (Hugging Face: "
                "gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False}))."
            )
        function, _, *inputs = arguments
        return function(*inputs)  # nothing is to be computed again

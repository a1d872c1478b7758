"""Call a module with other tensors in the place of its parameters and buffers.

What `torch.func.functional_call` does, with all that does not change from call to call looked up once: adaptation calls
a model thousands of times a second where it is small, and then the looking up is a good part of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from warpgrad.errors import WarpgradError

Slot = tuple[dict[str, Any], str]
"""Where a module keeps a tensor: its dict, and the key in it."""


class Swapper:
    """The places of every named parameter and buffer; a tied one has several."""

    def __init__(self, module: nn.Module) -> None:
        names = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
        self._slots: dict[str, list[Slot]] = {name: [] for name in names.values()}
        for path, child in module.named_modules():
            if isinstance(child, torch.jit.ScriptModule):
                raise WarpgradError(
                    f"module '{path}' is compiled by TorchScript, whose parameters cannot be exchanged; "
                    "give the Python module instead."
                )
            for tensors in (child._parameters, child._buffers):
                for local, tensor in tensors.items():
                    if tensor is not None:
                        self._slots[names[id(tensor)]].append((tensors, local))

    @contextmanager
    def holding(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        """The module holds these tensors inside the block, and its own again after it.

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

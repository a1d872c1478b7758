"""FLOPs of products and convolutions, forwards and backwards, by PyTorch's own formulas.

`torch.utils.flop_counter.FlopCounterMode` follows modules too, and for that hangs hooks on what enters them; those fail
where a leaf enters a module under `torch.autograd.grad`, as θ enters Ω. Here nothing but operations is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is computed inside the block, in `total`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)  # type: ignore[attr-defined]
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        return result

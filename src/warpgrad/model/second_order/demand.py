"""Which gradients the backward pass under way is for.

`ctx.needs_input_grad` says of every tensor that requires gradients that it needs one, whoever asked. The inner gradient
is asked for θ alone and the meta-gradient for φ alone: by that flag a third of all weight gradients of Eq. 11 would be
computed for nobody. PyTorch's own operations ask the engine, and so do these.
"""

from __future__ import annotations

from typing import Any

import torch


def asked(ctx: Any, place: int) -> bool:
    """Inside a backward pass: whether it uses the gradient of the tensor at `place` among the function's tensors."""
    node = ctx.next_functions[place][0]
    if node is None:
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # Of a leaf the engine says no where it is not asked for, and refuses to answer where `autograd.grad` is for it.
        return True

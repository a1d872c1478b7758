"""Products of small matrices in compiled steps, as custom operations that `products.cpp` computes.

The library that PyTorch uses for products is made for large matrices, and on some processors it leaves half of their
vector units idle. The matrices of a small network lie in the cache; for these `replace_products` puts a custom
operation into a graph. In compiled code it is a call of a C function, which is built once and kept on disk. Elsewhere
it is the ordinary product.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node

MOST_OPERATIONS = 2**27
"""The largest number of multiplications per product for which the custom operation was measured to be faster."""
SOURCE = Path(__file__).with_name("products.cpp")
_FLAGS = ("-ffp-contract=fast",)
"""Multiply and add in one instruction: the compiler of PyTorch keeps them apart otherwise."""

_ATEN = torch.ops.aten


@torch.library.custom_op("warpgrad::small_product", mutates_args=())
def small_product(left: Tensor, right: Tensor) -> Tensor:
    """Compute A B, or a stack of such products, stored row by row."""
    return (left @ right).contiguous()


@small_product.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((*left.shape[:-1], right.shape[-1]))


@torch.library.custom_op("warpgrad::small_product_added", mutates_args=())
def small_product_added(added: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> Tensor:
    """Compute β D + α A B, or a stack of such sums, stored row by row."""
    return (beta * added + alpha * (left @ right)).contiguous()


@small_product_added.register_fake
def _(added: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> Tensor:
    del added, beta, alpha
    return left.new_empty((*left.shape[:-1], right.shape[-1]))


_PRODUCT, _PRODUCT_ADDED = torch.ops.warpgrad.small_product.default, torch.ops.warpgrad.small_product_added.default


class Declarations(dict[OpOverload, list[str]]):
    """The C functions of the operations, as compiled code declares them.

    They are a setting of the compiler, and a key of its cache is made from all settings as they are pickled. Operations
    cannot be pickled; this can, and is the same in every process.
    """

    def __init__(self) -> None:
        tensor, result = "AtenTensorHandle", "AtenTensorHandle*"
        for operation, types in (
            (_PRODUCT, (tensor, tensor, result)),
            (_PRODUCT_ADDED, (tensor, tensor, tensor, "double", "double", result)),
        ):
            name = operation._schema.name.split("::")[1]
            self[operation] = [f"AOTITorchError aoti_torch_cpu_{name}({', '.join(types)})"]

    def __reduce__(self) -> tuple[type[Declarations], tuple[()]]:
        return Declarations, ()


@cache
def load_products() -> None:
    """Build the C functions, or load them from disk, where code that is loaded later finds them."""
    from torch._inductor.codecache import CppCodeCache

    built = CppCodeCache.load(SOURCE.read_text(encoding="utf-8"), extra_flags=_FLAGS, needs_vec_isa=True)
    ctypes.CDLL(built._name, mode=ctypes.RTLD_GLOBAL)


def replace_products(graph: Graph) -> None:
    """Replace products of small matrices by this module's operations."""
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_small_product(node):
            *added, left, right = node.args
            with graph.inserting_before(node):
                if added:
                    weights = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
                    own = graph.call_function(_PRODUCT_ADDED, (*added, left, right, *map(float, weights)))
                else:
                    own = graph.call_function(_PRODUCT, (left, right))
            own.meta["val"] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype, device="meta")
            node.replace_all_uses_with(own)
            graph.erase_node(node)


def _is_small_product(node: Node) -> bool:
    if node.target in (_ATEN.addmm.default, _ATEN.baddbmm.default):
        added, *factors = node.args
        if not isinstance(added, Node) or added.meta["val"].shape != node.meta["val"].shape:
            return False
    elif node.target in (_ATEN.mm.default, _ATEN.bmm.default):
        factors = list(node.args)
    else:
        return False
    left, right = (factor.meta["val"] for factor in factors if isinstance(factor, Node))
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    # With a side of 1 it is a scaling or a sum, not a product, and the compiler fuses it with its surroundings.
    return (
        left.dtype in (torch.float32, torch.float64)
        and left.device.type == "cpu"
        and min(rows, inner, columns) > 1
        and rows * inner * columns <= MOST_OPERATIONS
    )

"""Rewriting of a traced computation's graph before it is run.

`simplify` removes what changes no number. `reorder_products` takes matrix products in the order that costs least: a
layer with weights W that saw a batch x has the gradient gᵀx, whose rank is at most the size of the batch. Autograd
makes the whole matrix, one for each task, twice: for the step along it, and for the second derivative of the loss after
the step, which needs it only in products with other thin matrices. So A (B C) becomes (A B) C where that takes fewer
operations, and W + s·B C becomes one call that adds to W as it multiplies: the matrices between are never made. Sums
are then taken in another order than by plain evaluation, and the last digits differ.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

_ATEN = torch.ops.aten
_RESHAPES = (_ATEN.view.default, _ATEN._unsafe_view.default)
_SWAPS = (_ATEN.t.default, _ATEN.transpose.int)
"""Operations that are their own inverses."""
_SCALINGS = (_ATEN.mul.Scalar, _ATEN.mul.Tensor)
_ADDING: dict[Any, Any] = {_ATEN.mm.default: _ATEN.addmm.default, _ATEN.bmm.default: _ATEN.baddbmm.default}
"""Products of matrices, and of stacks of them; each with the call that adds to another matrix as it multiplies."""


def simplify(graph: Graph) -> None:
    """Remove what changes no number: aliases, views that undo each other, products with 1, repeated computations."""
    seen: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        _shorten(node)
        same = node.args[0] if _changes_nothing(node) else seen.setdefault(_meaning(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _shorten(node: Node) -> None:
    """Make a reshape of a reshape, or a swap that undoes the same swap, start from the input of the first one."""
    inner = node.args[0] if node.args else None
    if not isinstance(inner, Node) or inner.op != "call_function":
        return
    if node.target is _ATEN.view.default and inner.target in _RESHAPES:
        node.args = (inner.args[0], *node.args[1:])
    elif node.target in _SWAPS and inner.target is node.target and inner.args[1:] == node.args[1:]:
        node.target, node.args = _ATEN.alias.default, (inner.args[0],)


def _changes_nothing(node: Node) -> bool:
    operation = node.target
    if operation in (_ATEN.detach.default, _ATEN.alias.default):
        return True
    if operation in (*_RESHAPES, _ATEN.expand.default):
        source = node.args[0]
        return isinstance(source, Node) and _layout(source) == _layout(node) is not None
    return operation is _ATEN.mul.Scalar and bool(node.args[1] == 1)


def _layout(node: Node) -> Hashable:
    """Return the shape and strides of a node's result, or None if the result is not a single tensor."""
    value = node.meta.get("val")
    return (tuple(value.shape), tuple(value.stride())) if isinstance(value, Tensor) else None


def _meaning(node: Node) -> Hashable:
    """Return a key that is equal for nodes that compute the same: the traced operations have no side effects."""
    return node.target, repr(node.args), repr(node.kwargs)


def reorder_products(graph: Graph) -> None:
    """Take products of three matrices in the cheaper order, and fuse products with the additions that follow."""
    for change in (_reassociate, _transpose_sum, _accumulate):
        for node in list(graph.nodes):
            if node.op == "call_function" and all(isinstance(one, Node) for one in node.args):
                with graph.inserting_before(node):
                    better = change(graph, node)
                if better is not node:
                    node.replace_all_uses_with(better)
                    graph.erase_node(node)
        simplify(graph)


@dataclass(frozen=True)
class _Product:
    """scale · left · right, or that transposed, where a graph has one."""

    left: Node
    right: Node
    scale: float
    transposed: bool
    alone: bool
    """Whether nothing else uses it."""

    @property
    def rank(self) -> int:
        """The most that its rank can be."""
        return _sides(self.left)[1]

    def factors(self, graph: Graph) -> tuple[Node, Node]:
        """Return two nodes whose product is this one, apart from the scale."""
        if not self.transposed:
            return self.left, self.right
        return _transpose(graph, self.right), _transpose(graph, self.left)


def _product(node: Node) -> _Product | None:
    """Return the product that a node computes, looking through transpositions and multiplications by numbers."""
    scale, transposed, alone = 1.0, False, len(node.users) == 1
    while node.target not in _ADDING:
        if _is_transposition(node):
            transposed = not transposed
        elif node.target in _SCALINGS and isinstance(node.args[1], int | float):
            scale *= node.args[1]
        else:
            return None
        (node,) = node.all_input_nodes
        alone = alone and len(node.users) == 1
    left, right = node.all_input_nodes if len(node.all_input_nodes) == 2 else node.all_input_nodes * 2
    return _Product(left, right, scale, transposed, alone)


def _reassociate(graph: Graph, node: Node) -> Node:
    """Rewrite A (B C) as (A B) C, or the reverse, where the product in brackets is large and its factors thin."""
    multiply: Any = node.target
    if multiply not in _ADDING:
        return node
    first, second = _operands(node)
    (rows, inner), (_, columns) = _sides(first), _sides(second)
    left, right = _product(first), _product(second)
    if right is not None and right.rank * (inner + columns) < inner * columns:
        outer, last = right.factors(graph)
        thin = _call(graph, multiply, first, outer)
        return _call(graph, multiply, _scale(graph, thin, right.scale), last)
    if left is not None and left.rank * (rows + inner) < rows * inner:
        outer, last = left.factors(graph)
        thin = _call(graph, multiply, last, second)
        return _call(graph, multiply, outer, _scale(graph, thin, left.scale))
    return node


def _transpose_sum(graph: Graph, node: Node) -> Node:
    """Rewrite Aᵀ + Bᵀ as (A + B)ᵀ, because products are best added in the layout they have in memory."""
    if node.target is not _ATEN.add.Tensor:
        return node
    first, second = _operands(node)
    if not (_is_transposition(first) and _is_transposition(second)):
        return node
    summed = _call(graph, node.target, first.all_input_nodes[0], second.all_input_nodes[0], **node.kwargs)
    return _transpose(graph, summed)


def _accumulate(graph: Graph, node: Node) -> Node:
    """Compute A + s·B C in one call."""
    if node.target is not _ATEN.add.Tensor or len({tuple(_value(one).shape) for one in _operands(node)}) > 1:
        return node
    first, second = _operands(node)
    alpha: Any = node.kwargs.get("alpha", 1)
    for place, other, own, theirs in ((second, first, alpha, 1), (first, second, 1, alpha)):
        found = _product(place)
        if found is not None and found.alone and other is not place:
            adding = _ADDING[_ATEN.mm.default if _value(place).ndim == 2 else _ATEN.bmm.default]
            return _call(graph, adding, other, *found.factors(graph), beta=theirs, alpha=own * found.scale)
    return node


def _operands(node: Node) -> tuple[Node, Node]:
    first, second = node.args
    assert isinstance(first, Node)
    assert isinstance(second, Node)
    return first, second


def _value(node: Node) -> Tensor:
    """Return a tensor without data that has a node's shape."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _sides(node: Node) -> tuple[int, int]:
    rows, columns = _value(node).shape[-2:]
    return rows, columns


def _is_transposition(node: Node) -> bool:
    if node.target is _ATEN.t.default:
        return True
    if node.target is not _ATEN.transpose.int:
        return False
    ndim = _value(node).ndim
    return {place % ndim for place in node.args[1:]} == {ndim - 2, ndim - 1}  # type: ignore[operator]


def _transpose(graph: Graph, node: Node) -> Node:
    if _value(node).ndim == 2:
        return _call(graph, _ATEN.t.default, node)
    return _call(graph, _ATEN.transpose.int, node, 1, 2)


def _scale(graph: Graph, node: Node, factor: float) -> Node:
    return node if factor == 1 else _call(graph, _ATEN.mul.Scalar, node, factor)


def _call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    node = graph.call_function(target, args, kwargs)
    values = [_value(one) if isinstance(one, Node) else one for one in args]
    node.meta["val"] = target(*values, **kwargs)
    return node

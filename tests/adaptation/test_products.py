"""Products of small matrices by our own operation: torch's numbers, for every layout and every ragged edge."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from warpgrad.adaptation import products
from warpgrad.adaptation.compiled import compiled, compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
OURS = (products._PRODUCT, products._PRODUCT_ADDED)


def plain(x, w, g):
    """The layouts that steps have: x Wᵀ, g W, gᵀ x, all transposed, and sums with matrices of any strides."""
    add = torch.addmm if x.ndim == 2 else torch.baddbmm
    return [
        x @ w.mT,
        g @ w,
        g.mT @ x,
        w @ x.mT,
        w.mT @ g.mT,
        add(w, g.mT, x, beta=0.5, alpha=-2.0),
        add((w @ x.mT).mT, x, w.mT, alpha=-0.1),
        add(g[..., :1, :].expand(g.shape), x, w.mT),
    ]


def given(rows, inner, columns, dtype, stack=()):
    """x: rows × inner, W: columns × inner, g: rows × columns."""
    draw = torch.Generator().manual_seed(rows + inner + columns)
    sides = (rows, inner), (columns, inner), (rows, columns)
    return [torch.randn(*stack, *each, generator=draw, dtype=dtype) for each in sides]


@needs_compiler
def test_compiled_products_are_those_of_torch():
    """Edges that are no multiple of a vector or a tile, stacks, both precisions: all in one graph, built once."""
    cases = [
        given(*sides, dtype, stack)
        for dtype in (torch.float64, torch.float32)
        for sides, stack in [((2, 3, 2), ()), ((9, 17, 53), ()), ((8, 32, 48), ()), ((25, 20, 35), (3,))]
    ]
    flat = [value for case in cases for value in case]

    def every(*values):
        found = []
        for place in range(0, len(values), 3):
            found += plain(*values[place : place + 3])
        return found

    graph = make_fx(every, tracing_mode="fake")(*flat)
    replaced = make_fx(every, tracing_mode="fake")(*flat).graph
    products.replace_products(replaced)
    targets = [node.target for node in replaced.nodes if node.op == "call_function"]
    assert not {torch.ops.aten.mm.default, torch.ops.aten.bmm.default}.intersection(targets)
    assert set(OURS) <= set(targets)
    for found, expected in zip(compiled(graph, flat)(*flat), every(*flat), strict=True):
        precision = 1e-12 if expected.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(found, expected, rtol=precision, atol=10 * precision)


def test_what_is_no_product_of_small_matrices_stays():
    """Sides of 1 are joined to what is around them; large matrices have a library of their own."""

    def both(scaled, large, half):
        return scaled @ scaled.t(), large @ large.t(), half @ half

    values = torch.randn(4, 1), torch.empty(1024, 1024, device="meta"), torch.randn(4, 4).half()
    graph = make_fx(both, tracing_mode="fake")(*values).graph
    products.replace_products(graph)
    assert not any(node.target in OURS for node in graph.nodes)


def test_operations_are_the_products_that_they_stand_for():
    x, w, g = given(4, 5, 6, torch.float64)
    assert torch.equal(products.small_product(g, w), g @ w)
    assert torch.equal(products.small_product_added(x, g, w, 0.5, 2.0), 0.5 * x + 2.0 * (g @ w))


def test_declarations_are_the_same_in_every_process():
    """They are part of the key under which compiled code is found again."""
    assert pickle.loads(pickle.dumps(products.Declarations())) == products.Declarations()

"""Compiled adaptation: the graph of a traced computation as machine code.

TorchInductor, the compiler of PyTorch, turns a graph into one C++ function, which a C++ compiler builds: operations on
the same entries become one loop, and nothing of Python is left between them. What was built is kept on disk, and the
next process only loads it. Before that, products of matrices are taken in a cheaper order, see
`warpgrad.adaptation.graphs`.

Compiled code adds up in another order than plain evaluation. So a run has to be compiled from its first meta-step to
its last, or not at all; `warpgrad.algorithms.backend` sees to that. Where a single computation of a run cannot be
compiled and is traced instead, that is part of the run's state too.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from warpgrad.adaptation.graphs import reorder_products
from warpgrad.adaptation.products import Declarations, load_products, replace_products
from warpgrad.adaptation.traced import TracedGraphs
from warpgrad.errors import WarpgradError, first_line
from warpgrad.keys import fold
from warpgrad.tensors import discrepancy, without_autocast

logger = logging.getLogger(__name__)

MOST_BATCHES = 4
"""Computations that look at more batches stay traced: a compiler takes longer with every step of an unrolled graph."""
TOLERANCE, TOLERANCE_SINGLE = 1e-8, 1e-3
"""Between compiled and plain evaluation, relative to the numbers' size; see `warpgrad.tensors.discrepancy`."""


def compiler() -> str | None:
    """Return the C++ compiler to use: the one that CXX names, otherwise g++; None if it is not installed."""
    return shutil.which(os.environ.get("CXX", "g++"))


class CompiledGraphs(TracedGraphs):
    """Like `TracedGraphs`, but each graph is compiled when its computation is first seen and never runs otherwise."""

    def __init__(self, *, strict: bool, begun: bool = False, left: set[int] | None = None) -> None:
        """
        Args:
            strict: Make an error of what cannot be compiled; otherwise it is traced only.
            begun: Whether they are for a run that has begun before: then what it has compiled must be compiled again.
            left: The computations that a run has left traced; those of this process are added.
        """
        super().__init__()
        self._strict, self._begun = strict, begun
        self._left = set[int]() if left is None else left

    def _worth_tracing(self, seen: int, versions: int) -> bool:
        del seen, versions
        return True

    def _runnable(
        self, graph: GraphModule, flat: list[Tensor], expected: Sequence[Tensor], batches: int
    ) -> Callable[..., Sequence[Tensor]] | None:
        if not all(value.isfinite().all() for value in expected):
            return None  # plain evaluation finds it again and reports where
        which = fold(graph.code, *(f"{tuple(value.shape)} {value.dtype}" for value in flat))
        if batches > MOST_BATCHES or which in self._left:
            return super()._runnable(graph, flat, expected, batches)
        try:
            run = _compiled_somewhere(graph, flat)
            with torch.no_grad(), without_autocast():
                found = run(*flat)
        # A compiler may fail in any way, depending on model and machine; every error means the same here.
        except Exception as error:
            self._leave(which, f"the compiler failed: {first_line(error)}")
            return super()._runnable(graph, flat, expected, batches)
        double = all(value.dtype == torch.float64 for value in expected if value.is_floating_point())
        if not discrepancy(found, expected) <= (TOLERANCE if double else TOLERANCE_SINGLE):
            self._leave(which, "compiled steps give different numbers")
            return super()._runnable(graph, flat, expected, batches)
        return run

    def _leave(self, which: int, reason: str) -> None:
        self._check(reason)
        if self._begun:
            raise WarpgradError(
                f"the steps of this run are compiled, but here {reason.rstrip('.')}; fix that, or continue with "
                "backend='traced', whose numbers differ in the last digits."
            )
        self._left.add(which)
        logger.info("steps are not compiled: %s", reason)

    def _refuse(self, reason: str) -> None:
        self._check(reason)
        super()._refuse(reason)

    def _check(self, reason: str) -> None:
        if self._strict:
            raise WarpgradError(f"backend='compiled' cannot be used ({reason.rstrip('.')}); use backend='auto'.")


def _compiled_somewhere(graph: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compile as `compiled` does; if the cache folder cannot be used, compile again in a new one."""
    try:
        return compiled(graph, inputs)
    except Exception as error:  # read-only, full, or a damaged entry: the compiler has no error class for it
        logger.info("compiling again in a new cache folder: %s", first_line(error))
        with _new_cache():
            return compiled(graph, inputs)


@contextmanager
def _new_cache() -> Iterator[None]:
    """Ignore what was built before inside the block, and do not keep what is built there."""
    from torch._inductor.utils import clear_caches

    name, before = "TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="warpgrad-compiled-") as folder:
        clear_caches()
        os.environ[name] = folder
        try:
            yield
        finally:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before
            clear_caches()


def compiled(graph: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compile a graph, its products reordered, to machine code for inputs of these shapes, strides and types."""
    import torch._inductor  # importing takes seconds, and few users need it

    better = copy.deepcopy(graph)
    reorder_products(better.graph)
    replace_products(better.graph)
    better.recompile()
    settings: dict[str, Any] = {
        "cpp_wrapper": True,  # one C++ function for the whole graph, instead of Python between its kernels
        "cpp.threads": 1,  # more do not help small networks, and sums must not depend on the number of cores
        "compile_threads": 1,  # no pool of processes for one function
        # The instructions that the processor has. A trial, as is the default, could fail where a machine is busy or a
        # file is damaged, and the next process would have other code, with other last digits.
        "cpp.vec_isa_ok": True,
        "aot_inductor.custom_ops_to_c_shims": Declarations(),
    }
    logger.info("compiling a step of %d operations; it is cached on disk for later processes", len(better.graph.nodes))
    with torch._inductor.config.patch(settings), torch.no_grad(), without_autocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the compiler's internals; users can do nothing about them
        load_products()
        run: Callable[..., Sequence[Tensor]] = torch._inductor.compile(better, [value.detach() for value in inputs])
        run(*(value.detach() for value in inputs))  # the first call builds some of it
    return run

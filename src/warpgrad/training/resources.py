"""The environment and the cost of a run: versions, hardware, floating-point operations, memory."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from warpgrad.errors import WarpgradError
from warpgrad.version import __version__


def versions() -> dict[str, str]:
    return {
        "warpgrad": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def hardware() -> dict[str, Any]:
    """Return the processor, its number of cores and the number of threads in use."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs of products and convolutions inside the block, in `total`, by PyTorch's own formulas.

    `torch.utils.flop_counter.FlopCounterMode` also tracks modules, by hooks on their inputs, which fail where a leaf is
    the input of a module under `torch.autograd.grad`, as θ is of Ω. Here only operations are counted.
    """

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


def peak_bytes() -> int:
    """Return the peak memory of this program alone; `ru_maxrss` would include that of the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        if sys.platform == "win32":
            raise WarpgradError("peak memory cannot be measured on Windows; leave out --estimate.")
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024

"""Checkpoints: one safetensors file with all tensors, and all other values as JSON in its header.

A state is a nest of dicts, lists, tensors and plain values. Nothing is pickled, so a checkpoint from a stranger can
be read without running anything. One file means one rename: it is whole or it is not there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from warpgrad.errors import WarpgradError
from warpgrad.io import write_bytes

CHECKPOINT_FORMAT = 1
_KEY = "warpgrad"


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`, atomically."""
    write_bytes(path, packed(state))


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that `save` wrote; tensors on `device`."""
    try:
        with safetensors.safe_open(str(path), framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError as error:
        raise WarpgradError(f"checkpoint {path} does not exist.") from error
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise WarpgradError(
            f"checkpoint {path} is damaged ({str(error).splitlines()[0]}); delete it to go on from the one before it, "
            "or start over with --fresh."
        ) from error
    if _KEY not in metadata:
        raise WarpgradError(f"{path} is a safetensors file, but not a checkpoint of warpgrad; give one of a run.")
    content = json.loads(metadata[_KEY])
    if content["format"] != CHECKPOINT_FORMAT:
        raise WarpgradError(
            f"checkpoint {path} has format {content['format']}, this version reads format {CHECKPOINT_FORMAT}; "
            "use the version that wrote it, or start over with --fresh."
        )
    state: dict[str, Any] = _decode(content["state"], tensors)
    return state


def packed(state: Mapping[str, Any]) -> bytes:
    """The bytes of a checkpoint."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps({"format": CHECKPOINT_FORMAT, "state": _encode(state, "", tensors)})
    return safetensors.torch.save(tensors, metadata={_KEY: structure})


def unpacked(data: bytes, device: torch.device) -> dict[str, Any]:
    """The state in bytes that `packed` made in the same version; tensors on `device`."""
    length = int.from_bytes(data[:8], "little")
    content = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
    tensors = {name: value.to(device) for name, value in safetensors.torch.load(data).items()}
    state: dict[str, Any] = _decode(content["state"], tensors)
    return state


def cloned(state: Any) -> Any:
    """A copy whose tensors share no memory with the original: a snapshot of running training."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: cloned(value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return [cloned(value) for value in state]
    return state


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = path or "value"
        # A contiguous copy: tied or overlapping tensors are refused by the format.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        # Pairs, because the keys of optimiser states are integers and JSON knows only strings.
        return {"items": [[key, _encode(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        return {"list": [_encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__} at {path}")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "items":
        return {key: _decode(item, tensors) for key, item in content}
    if kind == "list":
        return [_decode(item, tensors) for item in content]
    return content

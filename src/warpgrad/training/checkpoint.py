"""Checkpoints: one safetensors file with all tensors, and all other values as JSON in its header.

A state is a nest of dicts, lists, tensors and plain values. Nothing is pickled, so a checkpoint from a stranger can
be read without running anything. One file means one rename: it is complete or absent. The header also has the
SHA-256 of everything else in the file, which is compared whenever a checkpoint is read: a bit that has flipped on a
disk changes no result silently.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from warpgrad.errors import WarpgradError, first_line, require
from warpgrad.io import DamagedError, read_bytes, reason, write_bytes

logger = logging.getLogger(__name__)

CHECKPOINT_FORMAT = 1
_KEY, _CHECKSUM = "warpgrad", "sha256"
"""The entries of the header: everything but tensors, and the checksum, which checkpoints of earlier versions lack."""


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`, atomically."""
    write_bytes(path, packed(state))


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read the state that `write_checkpoint` wrote, verify its checksum, and put its tensors on `device`.

    A checkpoint of an earlier version has no checksum: it is used as it is, with a warning.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError as error:
        raise WarpgradError(f"checkpoint {path} does not exist.") from error
    except OSError as error:
        raise WarpgradError(f"checkpoint {path} cannot be read: {reason(error)}; fix that and try again.") from error
    try:
        metadata = _metadata(data)
        tensors = safetensors.torch.load(data)
    # The header of a damaged file can hold anything.
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, first_line(error)) from error
    ours = bool(metadata.keys() & {_KEY, _CHECKSUM})
    require(ours, f"{path} is a safetensors file, but not a warpgrad checkpoint; give that of a run.")
    if _KEY not in metadata or metadata.keys() - {_KEY, _CHECKSUM}:
        raise _damaged(path, "its header has unknown entries")
    if _CHECKSUM not in metadata:
        logger.warning("checkpoint %s is from an earlier version and has no checksum: it is loaded unverified.", path)
    elif metadata[_CHECKSUM] != _digest(metadata[_KEY], tensors):
        raise _damaged(path, "its content does not match its checksum")
    try:
        content = json.loads(metadata[_KEY])
        known = content["format"] == CHECKPOINT_FORMAT
        state: dict[str, Any] = _decode(content["state"], tensors) if known else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be parsed ({type(error).__name__})") from error
    require(
        known,
        f"checkpoint {path} has format {content['format']}, but this version reads format {CHECKPOINT_FORMAT}; "
        "use the version that wrote it, or start over with --fresh.",
    )
    found: dict[str, Any] = to_device(state, device)
    return found


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(
        f"checkpoint {path} is damaged ({why}); repeat the run's command to resume from the previous checkpoint, or "
        "start over with --fresh."
    )


def packed(state: Mapping[str, Any]) -> bytes:
    """Return the bytes of a checkpoint."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps({"format": CHECKPOINT_FORMAT, "state": _encode(state, "", tensors)})
    return safetensors.torch.save(tensors, metadata={_KEY: structure, _CHECKSUM: _digest(structure, tensors)})


def unpacked(data: bytes, device: torch.device) -> dict[str, Any]:
    """Read a state from bytes that `packed` made in the same version, with its tensors on `device`."""
    content = json.loads(_metadata(data)[_KEY])
    state: dict[str, Any] = to_device(_decode(content["state"], safetensors.torch.load(data)), device)
    return state


def _metadata(data: bytes) -> dict[str, str]:
    """Return the text entries in the header of a safetensors file, whose length is in the first eight bytes."""
    length = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("its metadata are not strings")
    return found


def _digest(structure: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all values: the structure, then every tensor's name, type, shape and bytes."""
    found = hashlib.sha256(structure.encode())
    for name, value in sorted(tensors.items()):
        found.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def to_device(state: Any, device: torch.device | str) -> Any:
    """Return the state with its tensors on `device`."""
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {key: to_device(value, device) for key, value in state.items()}
    return [to_device(value, device) for value in state] if isinstance(state, list) else state


def cloned(state: Any) -> Any:
    """Return a copy whose tensors share no memory with the original: a snapshot of running training."""
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

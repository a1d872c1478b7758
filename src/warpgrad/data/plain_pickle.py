"""Reading published pickles without running them: plain values and arrays of integers, nothing else.

A pickle is a program that may call anything it can name. Here it can name the few functions by which NumPy packs an
array, and even those are not NumPy's: each name maps to a stand-in that records shape, type and bytes, checks them, and
builds the array itself. Everything else that a file names is rejected before it is imported. Files from Python 2 can be
read; their strings come out as `bytes`, so compare names with `text`.
"""

from __future__ import annotations

import codecs
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from warpgrad.errors import WarpgradError, require

Integers = npt.NDArray[np.integer[Any]]

_KINDS = frozenset({"b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"})


def load_plain(path: Path, remedy: str) -> Any:
    """Load the pickle `path`: dicts, lists, tuples, strings, bytes, numbers, and NumPy arrays of integers.

    `remedy` ends the error message where the file is rejected or damaged.
    """
    try:
        require(path.is_file() or not path.exists(), f"{path} is not a regular file: {remedy}.")
        size = path.stat().st_size
        with path.open("rb") as file:
            _measure(file, size)
            file.seek(0)
            return _finished(_PlainUnpickler(file, path, remedy).load(), {}, _Budget(FACTOR * size))
    except WarpgradError:
        raise
    # A damaged pickle can raise anything: it is a program that was cut off.
    except Exception as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise WarpgradError(f"{path} cannot be read as a pickle of plain arrays ({why}): {remedy}.") from failure


def text(value: object) -> str:
    """Convert a string of a pickle, from Python 3 or 2, to `str`."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def numbers_in(value: object) -> list[int] | None:
    """Return a list or a row of integers as a list, or None where it is neither."""
    items = value.tolist() if isinstance(value, np.ndarray) else value
    return items if isinstance(items, list) and all(type(item) is int for item in items) else None


class _Kind:
    """What a pickled `numpy.dtype` says."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object) -> None:
        self.code, self.order = text(code), "="
        if self.code not in _KINDS:
            raise ValueError(f"an array of type '{self.code}' is not an array of integers")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        # (version, byte order, …): the rest describes compound types, which are not supported.
        self.order = text(state[1])
        if self.order not in ("<", ">", "=", "|"):
            raise ValueError(f"an array of byte order '{self.order}' is not an array of integers")

    def build(self) -> np.dtype[Any]:
        return np.dtype(self.order.replace("|", "=") + self.code)


class _Pending:
    """An array whose shape, type and bytes arrive later: NumPy's unpickling creates it first and then fills it."""

    __slots__ = ("array",)

    def __init__(self, *_: object) -> None:
        self.array: Integers | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, raw = state
        self.array = _array(raw, kind, shape, "F" if columns_first else "C")


class _Stand:
    """What a pickle gets for a name: it can be called, but not changed."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *parts: object) -> object:
        return self._make(*parts)

    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError("it sets the state of a function")


def _array(raw: object, kind: object, shape: object, order: object = "C") -> Integers:
    if not isinstance(kind, _Kind) or not isinstance(raw, bytes | bytearray) or not isinstance(shape, tuple):
        raise ValueError("an array is not made of a shape, a type and bytes")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"an array has the invalid shape {shape}")
    if math.prod(shape) * kind.build().itemsize != len(raw):
        raise ValueError(f"an array of shape {shape} has {len(raw)} bytes")
    return np.frombuffer(raw, dtype=kind.build()).reshape(shape, order="F" if text(order) == "F" else "C")


def _scalar(kind: object, raw: object) -> int:
    return int(_array(raw, kind, ()))


def _encode(value: object, encoding: object) -> bytes:
    """Restore bytes that Python 3 wrote for Python 2, as a string in latin1."""
    if not isinstance(value, str) or encoding != "latin1":
        raise ValueError("it encodes a value that is not a latin1 string")
    return codecs.encode(value, "latin1")


_NAMES = {
    ("numpy", "dtype"): _Stand(_Kind),
    ("numpy", "ndarray"): _Stand(_Pending),
    ("_codecs", "encode"): _Stand(_encode),
    # How Python 3 writes empty bytes for Python 2; it is called without arguments.
    ("__builtin__", "bytes"): _Stand(lambda: b""),
    # NumPy 2 moved numpy.core to numpy._core.
    **{
        (f"{core}.{module}", name): _Stand(make)
        for core in ("numpy.core", "numpy._core")
        for module, name, make in (
            ("multiarray", "_reconstruct", _Pending),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _array),
        )
    },
}
"""What a pickle may name, and what it gets for that."""


FACTOR = 4
"""Strings and arrays of a pickle may take this many times the bytes of its file; honest content takes one."""


class _Budget:
    """The bytes that may still be used: a file that repeats the same value often enough could use any number."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ValueError(f"its values take more than {FACTOR} times the bytes of the file")


class _Bounded:
    """A file that checks how much of it is left before memory is allocated for what it claims."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size

    def read(self, count: int) -> bytes:
        if count > self._size - self._file.tell():
            raise ValueError("it is shorter than it claims")
        return self._file.read(count)

    def readline(self) -> bytes:
        return self._file.readline()

    def tell(self) -> int:
        return self._file.tell()


def _measure(file: IO[bytes], size: int) -> None:
    """Check that a pickle claims no more bytes than it has, and numbers no value far beyond those before it.

    The unpickler would allocate memory for both first.
    """
    for count, (code, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], _Bounded(file, size))), start=1):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > count:
            raise ValueError(f"it numbers a value {argument}, where at most {count} is possible")


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, path: Path, remedy: str) -> None:
        # encoding="bytes", so that pixels that Python 2 wrote are not decoded to text and back.
        super().__init__(file, encoding="bytes")
        self._path, self._remedy = path, remedy
        self._budget = _Budget(FACTOR * path.stat().st_size)

    def _encoded(self, value: object, encoding: object) -> bytes:
        self._budget.spend(len(value) if isinstance(value, str) else 0)
        return _encode(value, encoding)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _Stand(self._encoded)
        require(
            (module, name) in _NAMES,
            f"the pickle {self._path} is refused: it asks for {module}.{name}, but only plain values and NumPy "
            f"arrays of integers are read; {self._remedy}.",
        )
        return _NAMES[module, name]


def _finished(value: Any, done: dict[int, Any], budget: _Budget) -> Any:
    """Replace every pending array in a value by its array; `done` preserves shared objects, however often shared."""
    if isinstance(value, _Pending):
        if value.array is None:
            raise ValueError("an array was created but not filled")
        value = value.array
    if isinstance(value, np.ndarray):
        if id(value) not in done:
            budget.spend(value.nbytes)
            done[id(value)] = value
        return value
    if isinstance(value, dict | list | tuple):
        if id(value) not in done:
            done[id(value)] = _container(value, done, budget)
        return done[id(value)]
    if value is None or isinstance(value, bool | int | float | str | bytes | bytearray):
        return value
    raise ValueError(f"it holds a {type(value).__name__}")


def _container(value: Any, done: dict[int, Any], budget: _Budget) -> Any:
    if not isinstance(value, dict):
        return type(value)(_finished(item, done, budget) for item in value)
    if any(not isinstance(key, str | bytes | int) for key in value):
        raise ValueError("a dict has keys that are neither strings nor numbers")
    return {key: _finished(item, done, budget) for key, item in value.items()}

"""Published pickles are read as data: arrays of every protocol come out whole, and nothing else gets in."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import pickletools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from warpgrad.data.plain_pickle import load_plain, text
from warpgrad.errors import WarpgradError

REMEDY = "use the pictures"


def loaded(path: Path, raw: bytes):
    path.write_bytes(raw)
    return load_plain(path, REMEDY)


def refused(path: Path, raw: bytes) -> str:
    with pytest.raises(WarpgradError) as caught:
        loaded(path, raw)
    assert REMEDY in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_values_of_every_protocol(tmp_path, protocol):
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    value = {
        "image_data": images,
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "swapped": np.array([1, -2, 300], dtype=">i4"),
        "none": np.zeros((0, 3), dtype=np.uint8),
        "class_dict": {"n01": [0, 1], 2: [np.int64(-5), True, None, 0.5]},
        "texts": ["ä", b"\xff\x00", ("a", [])],
    }
    found = loaded(tmp_path / "a.pkl", pickle.dumps(value, protocol))
    assert found["image_data"].dtype == np.uint8
    for key in ("image_data", "columns", "swapped", "none"):
        assert found[key].shape == value[key].shape
        assert np.array_equal(found[key], value[key])
    assert found["class_dict"] == value["class_dict"]
    assert found["texts"] == value["texts"]


def test_what_python_2_wrote(tmp_path):
    """By hand, as Python 2 and NumPy 1 write {'d': array([1, 255], uint8)}: texts and pixels are its `str`."""
    raw = (
        b"\x80\x02}q\x00U\x01dq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x02\x01\xfftbs."
    )
    pickletools.dis(raw, out=io.StringIO())
    found = loaded(tmp_path / "a.pkl", raw)
    assert [text(key) for key in found] == ["d"]
    assert found[b"d"].dtype == np.uint8
    assert found[b"d"].tolist() == [1, 255]


class Calls:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    ("function", "argument"),
    [(os.system, "touch ran"), (builtins.eval, "open('ran', 'w')"), (builtins.getattr, "x"), (Fraction, 3), (set, ())],
)
def test_calls_are_refused_by_name_and_not_made(tmp_path, monkeypatch, protocol, function, argument):
    monkeypatch.chdir(tmp_path)
    message = refused(tmp_path / "evil.pkl", pickle.dumps({"image_data": Calls(function, argument)}, protocol))
    assert f".{function.__name__}, but only plain values" in message
    assert "\n" not in message
    assert not Path("ran").exists()


def test_even_what_may_be_named_cannot_be_turned(tmp_path):
    """State set on a stand-in, a class built by NEWOBJ, types that are no whole numbers, lengths that lie."""
    start = b"\x80\x02cnumpy\ndtype\n"
    path = tmp_path / "evil.pkl"
    assert "sets the state of a function" in refused(path, start + b"}U\x05_makeNsb.")
    assert "cannot be read as a pickle" in refused(path, start + b")\x81.")
    assert "it holds a _Stand" in refused(path, start + b".")
    assert "created but not filled" in refused(path, b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R.")
    for kind, name in ((object, "O8"), (np.float64, "f8"), ("S3", "S3"), ([("a", "u1")], "V1")):
        assert f"type '{name}'" in refused(path, pickle.dumps(np.zeros(2, dtype=kind), 2))
    whole = pickle.dumps(np.arange(9, dtype=np.uint8), 4)
    longer = whole.replace(b"K\x09\x85", b"K\x0a\x85")
    assert longer != whole
    assert "an array of shape (10,) has 9 bytes" in refused(path, longer)
    assert "keys that are neither" in refused(path, pickle.dumps({(1, 2): 3}))


def test_a_byte_order_can_say_no_more_than_a_byte_order(tmp_path):
    """Whatever stands there is put before the type code, and `f4,` makes a record of floats of it."""
    raw = pickle.dumps(np.array([1, 2], dtype="<i4"), 2)
    assert raw.count(b"X\x01\x00\x00\x00<") == 1
    forged = raw.replace(b"X\x01\x00\x00\x00<", b"X\x03\x00\x00\x00f4,")
    assert "byte order 'f4,'" in refused(tmp_path / "a.pkl", forged)


def test_damage_is_one_sentence(tmp_path):
    whole = pickle.dumps({"a": np.arange(1000), "b": ["x"] * 10})
    for length in (0, 1, 50, len(whole) - 1):
        assert "cannot be read as a pickle of plain arrays" in refused(tmp_path / "a.pkl", whole[:length])
    assert "cannot be read" in refused(tmp_path / "a.pkl", b"<html>not found</html>")
    with pytest.raises(WarpgradError, match=r"b\.pkl cannot be read.*No such file"):
        load_plain(tmp_path / "b.pkl", REMEDY)


def test_what_is_shared_is_not_multiplied(tmp_path):
    """Sixty lists, each of the one before, twice: 2⁶⁰ items if they were copied."""
    value: list = []
    for _ in range(60):
        value = [value, value]
    found = loaded(tmp_path / "a.pkl", pickle.dumps(value))
    assert found[0] is found[1]
    endless: list = []
    endless.append(endless)
    assert "cannot be read" in refused(tmp_path / "a.pkl", pickle.dumps(endless))

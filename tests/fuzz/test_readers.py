"""Whatever a file or a command line holds, it is read, or refused by one sentence: every reader, with hypothesis.

`make fuzz` tries longer: `HYPOTHESIS_EXAMPLES=2000`. The examples written out are a corpus: what was once found, or is
known to bite.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

import warpgrad as wg
from tests.faults.crashes import TINY
from tests.faults.record import put_on_record
from tests.support.text_encoder import sentences, write_csv
from tests.support.training_job import train
from warpgrad.cli.main import main
from warpgrad.cli.run import run_config
from warpgrad.data.archives import Limits, open_tree
from warpgrad.data.pictures import image_header, read_picture
from warpgrad.data.plain_pickle import load_plain
from warpgrad.data.sources.text import Fields, open_text, prepare_text, read_rows
from warpgrad.data.store import open_store
from warpgrad.data.writing import ClassImages, write
from warpgrad.errors import WarpgradError
from warpgrad.experiments.records import read_record
from warpgrad.experiments.runner import concluded
from warpgrad.io import check_files, read_json, write_json
from warpgrad.report.runs import read_run
from warpgrad.training import checkpoint
from warpgrad.training.run_directory import RunDirectory, saved_checkpoints

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "25"))
COUNTED: Counter[str] = Counter()
"""How many examples each test was given."""
FAILED: dict[str, str] = {}
"""What was wrong with the last example that failed."""


def fuzzed(test: Callable[..., None]) -> Callable[..., None]:
    """Settings of hypothesis for all tests here, and a count of their examples."""
    inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

    @wraps(inner)
    def counting(*arguments: object, **named: object) -> None:
        COUNTED[test.__name__] += 1
        try:
            inner(*arguments, **named)
        except Exception as error:
            FAILED[test.__name__] = repr(error)
            raise

    test.hypothesis.inner_test = counting  # type: ignore[attr-defined]
    return settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=EXAMPLES < 100,
    )(test)


@pytest.fixture(autouse=True)
def _on_record(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the number of examples on record where HYPOTHESIS_RECORD names one."""
    yield
    name = request.function.__name__
    if "HYPOTHESIS_RECORD" in os.environ and COUNTED[name]:
        counts = {"examples": COUNTED[name], "failures": [FAILED[name]] if name in FAILED else []}
        put_on_record(
            Path(os.environ["HYPOTHESIS_RECORD"]), "fuzz", name.removeprefix("test_").replace("_", " "), counts
        )


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)


@st.composite
def mutations(draw) -> list[tuple[str, int, int]]:
    """Edits of a file: bits flipped, bytes set, parts cut out, doubled or put at the end."""
    kinds = st.sampled_from(["flip", "set", "cut", "double", "end", "insert"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=5))


def mutated(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    found = bytearray(data)
    for kind, where, what in edits:
        place = where % max(len(found), 1)
        if kind == "flip" and found:
            found[place] ^= 1 << what % 8
        elif kind == "set" and found:
            found[place] = what
        elif kind == "cut":
            del found[place : place + what]
        elif kind == "double":
            found[place:place] = found[place : place + what]
        elif kind == "end":
            del found[place:]
        else:
            found[place:place] = bytes([what])
    return bytes(found)


@contextlib.contextmanager
def one_sentence():
    """Anything but our own error, with a sentence in one line, fails the test."""
    try:
        yield
    except WarpgradError as error:
        if not 0 < len(str(error).strip()) < 3000:
            raise AssertionError("no sentence") from error


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "run"
    with pytest.raises(SystemExit, match="0"):
        main(["run", "synthetic", "--out", str(path), "--meta-steps", "2", *TINY, "--quiet"])
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def tried(run: Path, scratch: Path, name: str, data: bytes) -> Path:
    """A copy of the run in which one file is another."""
    shutil.rmtree(scratch / "run", ignore_errors=True)
    shutil.copytree(run, scratch / "run")
    (scratch / "run" / name).write_bytes(data)
    return scratch / "run"


JSON_FILES = ("config.json", "summary.json", "evaluation.json")


@fuzzed
@given(name=st.sampled_from([*JSON_FILES, "metrics.jsonl"]), edits=mutations())
@example(name="config.json", edits=[("end", 0, 0)])
@example(name="summary.json", edits=[("set", 10, 0xFF)])
def test_mutated_files_of_a_run(run, scratch, name, edits):
    from warpgrad.experiments import find_experiment

    place = tried(run, scratch, name, mutated((run / name).read_bytes(), edits))
    with one_sentence():
        read_run(place)
    with one_sentence():
        declared, config = run_config(place)
        concluded(find_experiment(declared.name), config, place)


@fuzzed
@given(name=st.sampled_from(JSON_FILES), value=values)
@example(name="config.json", value={"experiment": "synthetic"})
@example(name="config.json", value={"experiment": {"a": 1}, "format": []})
@example(name="summary.json", value={"experiment": 1, "method": [], "preset": {}, "seed": None, "metrics": {"a": "b"}})
def test_any_json_in_a_run(run, scratch, name, value):
    place = tried(run, scratch, name, json.dumps(value).encode())
    with one_sentence():
        read_run(place)
    with one_sentence():
        run_config(place)
    with one_sentence():
        read_json(place / name)
    with one_sentence():
        RunDirectory(place, {"seed": 0}).close()


def test_json_that_is_nested_deeply_is_one_sentence(run, scratch):
    for data in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b"\xff\xfe", b"", b"NaN"):
        place = tried(run, scratch, "config.json", data)
        for reader in (read_run, run_config):
            with pytest.raises(WarpgradError):
                reader(place)


@fuzzed
@given(name=st.sampled_from(JSON_FILES), entry=st.integers(0, 99), value=values)
@example(name="config.json", entry=-1, value=10**400)
@example(name="summary.json", entry=1, value=-1)
@example(name="summary.json", entry=7, value={})  # no metrics at all
def test_any_value_and_a_right_checksum_in_a_run(run, scratch, name, entry, value, capsys):
    kept = read_json(run / name)
    changed = {**kept, sorted(kept)[entry % len(kept)]: value}
    place = tried(run, scratch, name, b"")
    write_json(place / name, changed, seal=True)
    testing = ["evaluate", str(place), "--out", str(scratch / "tested.json")]
    running = ["run", "synthetic", "--out", str(place), "--meta-steps", "2", *TINY, "--quiet"]
    with pytest.raises(SystemExit) as stop:
        main(testing if name == "config.json" else running)
    said = capsys.readouterr().err
    assert stop.value.code in (0, 2, 3)
    assert "should not have happened" not in said


@fuzzed
@given(edits=mutations())
def test_mutated_checkpoints_are_refused_or_the_same(run, scratch, edits):
    newest = saved_checkpoints(run)[-1]
    whole, file = newest.read_bytes(), scratch / "checkpoint"
    file.write_bytes(mutated(whole, edits))
    with one_sentence():
        assert str(checkpoint.read_checkpoint(file)) == str(checkpoint.read_checkpoint(newest))


@fuzzed
@given(structure=values)
@example(structure={"format": 1, "state": {"items": [[[], {"value": 1}]]}})
@example(structure={"format": 1, "state": {"tensor": "missing"}})
@example(structure={"format": 1, "state": {"items": [["step", {"value": None}]]}})
def test_checkpoints_with_any_header(scratch, structure):
    import safetensors.torch
    import torch

    file = scratch / "checkpoint"
    file.write_bytes(safetensors.torch.save({"x": torch.zeros(2)}, {"warpgrad": json.dumps(structure)}))
    with one_sentence():
        checkpoint.read_checkpoint(file)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, wg.Learner]:
    path = tmp_path_factory.mktemp("fuzz") / "trained"
    return path, train(str(path), 2)[0]


ENTRIES = ("step", "seconds", "offset", "digest", "weights", "best", "update", "algorithm", "backend", "early_stopping",
           "planned", "parts", "version", "run")  # fmt: skip


@fuzzed
@given(name=st.sampled_from(ENTRIES), value=values, inner=st.booleans())
@example(name="step", value=None, inner=False)
@example(name="offset", value="x", inner=False)
@example(name="digest", value=-1, inner=False)
@example(name="weights", value="x", inner=True)
@example(name="update", value={}, inner=False)
@example(name="backend", value={"form": 1}, inner=False)
def test_checkpoints_with_any_entry_and_a_right_checksum(trained, scratch, name, value, inner):
    """Whoever can write a checkpoint can write its checksum."""
    path, learner = trained
    shutil.rmtree(scratch / "trained", ignore_errors=True)
    shutil.copytree(path, scratch / "trained")
    older, newest = saved_checkpoints(scratch / "trained")
    older.unlink()
    state = checkpoint.read_checkpoint(newest)
    if inner and isinstance(state.get(name), dict) and state[name]:
        state[name][next(iter(state[name]))] = value
    else:
        state[name] = value
    checkpoint.write_checkpoint(newest, state)
    with one_sentence():
        wg.load_run(scratch / "trained", learner)
    with one_sentence():
        train(str(scratch / "trained"), 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "s"
    classes = [ClassImages(name, "", np.full((2, 1, 3, 3), shade, np.uint8)) for shade, name in enumerate("abc")]
    write(folder, classes, name="s", shape=(1, 3, 3), source="x", licence="y", splits={"train": ["a"]})
    return folder


@fuzzed
@given(edits=mutations(), name=st.sampled_from(["header.json", "images.bin"]))
def test_mutated_stores_are_refused_or_the_same(store, scratch, edits, name):
    shutil.rmtree(scratch / "s", ignore_errors=True)
    shutil.copytree(store, scratch / "s")
    (scratch / "s" / name).write_bytes(mutated((store / name).read_bytes(), edits))
    with one_sentence():
        assert open_store(scratch / "s").header == open_store(store).header


@fuzzed
@given(edits=mutations())
def test_mutated_journals_change_no_data_set(scratch, edits):
    """A data set whose making was cut off, and whose journal was then damaged."""
    destination = scratch / "journal"
    for path in (destination, scratch / ".journal.partial"):
        shutil.rmtree(path, ignore_errors=True)
    shades = {name: np.full((1, 1, 2, 2), shade, np.uint8) for shade, name in enumerate("abc")}

    def classes(until: int):
        for place, (name, images) in enumerate(shades.items()):
            if place == until:
                raise KeyboardInterrupt
            yield ClassImages(name, "", images)

    facts = {"name": "s", "shape": (1, 2, 2), "source": "x", "licence": "y", "fingerprint": "z"}
    with pytest.raises(KeyboardInterrupt):
        write(destination, classes(2), **facts)
    journal = scratch / ".journal.partial" / "classes.jsonl"
    journal.write_bytes(mutated(journal.read_bytes(), edits))
    made = write(destination, classes(9), **facts)
    assert made.classes == ("a", "b", "c")
    assert [int(made.images(place).max()) for place in range(3)] == [0, 1, 2]


@fuzzed
@given(edits=mutations())
def test_mutated_archives(scratch, edits):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.txt", b"text" * 50)
        archive.writestr("a/c.txt", bytes(1000))
    (scratch / "a.zip").write_bytes(mutated(buffer.getvalue(), edits))
    with one_sentence(), open_tree(scratch / "a.zip", Limits(file_bytes=10_000, total_bytes=20_000)) as tree:
        for name in tree.names:
            assert len(tree.read(name)) <= 10_000


PICKLE = pickle.dumps({"data": np.arange(20, dtype=np.uint8).reshape(4, 5), "names": ["a", b"b"], "n": 3})


@fuzzed
@given(edits=mutations(), protocol=st.sampled_from([0, 2, 4, 5]))
def test_mutated_pickles(scratch, edits, protocol):
    (scratch / "a.pkl").write_bytes(mutated(pickle.dumps(pickle.loads(PICKLE), protocol), edits))
    with one_sentence():
        load_plain(scratch / "a.pkl", "get it again")


BOMBS = {
    "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "bytes": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",
    "frame": b"\x80\x04\x95" + (1 << 50).to_bytes(8, "little") + b".",
    "text": b"\x80\x02("
    + b"c_codecs\nencode\n" + b"q\x00X\xe8\x03\x00\x00" + b"x" * 1000 + b"q\x01X\x06\x00\x00\x00latin1"
    + b"q\x02" + b"h\x00h\x01h\x02\x86R" * 5000 + b"l.",
    "loop": b"\x80\x02]q\x00h\x00a.",
    "deep": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_memory_is_taken(scratch, name):
    (scratch / "bomb.pkl").write_bytes(BOMBS[name])
    with pytest.raises(WarpgradError, match="cannot be read as a pickle"):
        load_plain(scratch / "bomb.pkl", "get it again")


def test_pictures_of_other_formats_and_too_many_pixels_are_refused():
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    large = io.BytesIO()
    Image.new("1", (9000, 9000)).save(large, format="PNG")
    for data in (eps, large.getvalue()):
        for reader in (image_header, lambda *words: read_picture(*words, channels=1)):
            with pytest.raises(WarpgradError, match="is not a readable image"):
                reader(data, "it", "leave it out")


@fuzzed
@given(edits=mutations(), kind=st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"]))
def test_mutated_pictures(edits, kind):
    buffer = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(buffer, format=kind)
    with one_sentence():
        read_picture(mutated(buffer.getvalue(), edits), "it", "leave it out", channels=3)


@fuzzed
@given(value=values)
@example(value={"format": 2, "table": "a", "title": "b", "preset": "c", "papers": {}, "runs": [], "diverged": {}})
@example(value={"format": 2, "table": "a", "title": "b", "preset": "c", "papers": {}, "runs": [], "diverged": None})
def test_any_json_as_a_record(scratch, value):
    (scratch / "record.json").write_text(json.dumps(value))
    with one_sentence():
        read_record(scratch / "record.json").groups()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    prepare_text(write_csv(folder / "own.csv", sentences(6, 2)), folder / "text")
    return folder


@fuzzed
@given(edits=mutations(), name=st.sampled_from(["own.csv", "own.jsonl"]))
def test_mutated_files_of_sentences(prepared, scratch, edits, name):
    data = (prepared / "own.csv").read_bytes()
    if name == "own.jsonl":
        data = b"".join(json.dumps({"text": text, "label": label}).encode() + b"\n" for text, label in sentences(6, 2))
    (scratch / name).write_bytes(mutated(data, edits))
    with one_sentence():
        read_rows(scratch / name, Fields())


@fuzzed
@given(edits=mutations())
def test_mutated_prepared_sentences_are_refused_or_the_same(prepared, scratch, edits):
    (scratch / "text").mkdir(exist_ok=True)
    (scratch / "text" / "text.json").write_bytes(mutated((prepared / "text" / "text.json").read_bytes(), edits))
    with one_sentence():
        assert open_text(str(scratch / "text")).texts == open_text(str(prepared / "text")).texts


@fuzzed
@given(value=values)
@example(value={"files": {"../../etc/passwd": "0" * 64}})
@example(value={"files": {"/etc/passwd": 1}})
def test_any_json_as_checksums(scratch, value):
    (scratch / "checksums.json").write_text(json.dumps(value))
    with one_sentence():
        check_files(scratch)


def refuses(*_: object, **__: object) -> None:
    raise WarpgradError("not here")


words = st.sampled_from(
    ["run", "evaluate", "report", "list", "data", "verify", "sweep", "reproduce", "synthetic", "omniglot", "prepare",
     "folder", "montage", "--help", "--seed", "--out", "--preset", "small", "-1", "1e400", "nan", "--config", "--data",
     "--method", "--lr", "--meta-steps", "99999999999999999999", "--threads", "--estimate", "--version", "--", "-h", ""]
) | st.text(max_size=6)  # fmt: skip


@fuzzed
@given(line=st.lists(words, max_size=6))
@example(line=["evaluate", "\0"])
@example(line=["report", "\ud800"])
@example(line=["run", "synthetic", "--config", "/dev/null"])
def test_any_command_line(line, tmp_path_factory, monkeypatch):
    """In a folder of its own, and without the commands that would work: what they do is stubbed."""
    monkeypatch.chdir(tmp_path_factory.mktemp("line"))
    said = io.StringIO()
    for name in ("runner.execute", "estimate.estimate_lines", "reproduction.reproduce"):
        monkeypatch.setattr(f"warpgrad.experiments.{name}", refuses)
    monkeypatch.setattr("warpgrad.sweep.study.open_study", refuses)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as stop:
        main(line)
    assert stop.value.code in (0, 2, 3), said.getvalue()
    assert "Traceback" not in said.getvalue()
    assert "should not have happened" not in said.getvalue()
    if stop.value.code:
        assert said.getvalue().startswith("warpgrad: ")
        assert said.getvalue().count("\n") == 1

"""Damaged files: single bits flipped in every kind of file that the library writes, and every command that reads them.

    python -m tests.faults.flips --flips 200 --given 20     of each kind of file

One in four is damaged otherwise: cut off, zeroed in part, written twice, or exchanged for that of another run.

A command that reads a damaged file refuses it by one sentence (exit code 2 or 3), or says what is wrong and ends as if
the file were whole. What ends well with another outcome is a silent acceptance. `verify` must refuse each flip; as that
needs no process of its own, there are more of these than are given to commands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import warpgrad as wg
from tests.data.tasks.test_alphabets import tiny_store
from tests.faults import crashes
from tests.faults.record import put_on_record
from tests.support.omniglot_runs import TINY as OMNIGLOT
from warpgrad.cli.verify import parts as verified_parts
from warpgrad.errors import WarpgradError
from warpgrad.experiments.runner import option
from warpgrad.training.run_directory import saved_checkpoints

TWIN = "twin"
"""A run that differs from the run "run" in nothing but its seed."""


@dataclass(frozen=True)
class Reader:
    """A command, and what it makes: the same again, or a refusal."""

    words: list[str]
    outcome: Callable[[], object]


@dataclass(frozen=True)
class Kind:
    """Files of one kind below the place, and what reads them."""

    files: list[str]
    readers: list[Reader]
    verified: list[str] | None = None
    """What `warpgrad verify` is given."""


def content(*paths: Path) -> object:
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]


def flat(settings: dict[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in option(name, value)]


def nothing() -> None:
    return None


def saved_learner(place: Path) -> tuple[Path, Callable[[], wg.Learner]]:
    def learner() -> wg.Learner:
        torch.manual_seed(0)
        return wg.Learner(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)), warp="1")

    wg.save(place / "saved.safetensors", wg.Method(learner(), wg.SGD(lr=0.1), None, wg.Leap()))
    return place / "saved.safetensors", learner


def kinds(place: Path) -> dict[str, Kind]:
    """Everything that the library writes, made at tiny sizes."""

    def made(*words: str) -> None:
        ended = crashes.attempt(list(words), place)
        assert ended.code == 0, ended

    run, page, store = place / "run", place / "page.html", place / "store" / "alphabets"
    made(*crashes.run_words(place))
    made(*crashes.run_words(place, name=TWIN), "--seed", "1")
    tiny_store(place / "store", alphabets=6)
    omniglot = ["run", "omniglot", *flat({**OMNIGLOT, "data": str(store)}), "--out", str(place / "omniglot"), "--quiet"]
    made(*omniglot)
    picture = place / "montage.png"
    made(*crashes.SCENARIOS["sweep"].words(place))
    text = place / "text"
    text.mkdir()
    crashes.text_run(text)
    made(*crashes.adapt_words(text))
    again, best = place / "again", place / "s" / "best.json"
    tested = place / "tested.json"
    judged = [*("evaluate", str(run), "--test-surfaces", "3", "--out", str(tested))]
    newest = [f"run/checkpoints/{file.name}" for file in saved_checkpoints(run)[-1:]]
    older = [f"run/checkpoints/{file.name}" for file in saved_checkpoints(run)[:-1]]
    whole, reported = crashes.run_words(place), ["report", str(run), "--out", str(page)]
    same = Reader(whole, lambda: crashes.outcome_of_run(run))
    text_words = ["run", "text-intents", "--method", "warp-maml", *crashes.TEXT, "--data", str(text / "data")]
    text_words += ["--encoder", str(text / "encoder"), "--out", str(text / "run"), "--quiet"]
    fresh = Reader([*text_words, "--fresh"], lambda: crashes.outcome_of_run(text / "run")[0])  # type: ignore[index]
    adapted = Reader([*crashes.adapt_words(text)[:-1], str(again)], lambda: content(again))
    sweeping = crashes.SCENARIOS["sweep"]
    from_best = Reader(
        [*("run", "synthetic", "--config", str(best), "--out", str(again), "--quiet")],
        lambda: crashes.outcome_of_run(again),
    )
    return {
        "newest checkpoint": Kind(newest, [same, Reader(judged, lambda: metrics_of(tested))], [str(run)]),
        "older checkpoint": Kind(older, [same], [str(run)]),
        "config.json": Kind(["run/config.json"], [same, Reader(judged, lambda: metrics_of(tested))], [str(run)]),
        "summary.json": Kind(["run/summary.json"], [same, Reader(reported, lambda: content(page))], [str(run)]),
        "evaluation.json": Kind(["run/evaluation.json"], [same, Reader(reported, lambda: content(page))], [str(run)]),
        "metrics.jsonl": Kind(["run/metrics.jsonl"], [same, Reader(reported, lambda: content(page))], [str(run)]),
        "prepared images": Kind(
            ["store/alphabets/images.bin", "store/alphabets/header.json"],
            [
                Reader(["data", "montage", "--data", str(store), "--out", str(picture)], lambda: content(picture)),
                Reader(["evaluate", str(place / "omniglot")], lambda: metrics_of(place / "omniglot/evaluation.json")),
            ],
            [str(store)],
        ),
        "prepared sentences": Kind(["text/data/text.json"], [fresh], [str(text / "data")]),
        "cached states": Kind(
            [f"text/data/{file.name}" for file in (text / "data").glob("states-*")], [fresh], [str(text / "data")]
        ),
        "meta-trained run for adapt": Kind(
            [f"text/run/checkpoints/{saved_checkpoints(text / 'run')[-1].name}", "text/run/config.json"],
            [adapted],
            [str(text / "run")],
        ),
        "adapted model": Kind(
            [f"text/model/{file.name}" for file in (text / "model").iterdir()], [], [str(text / "model")]
        ),
        "best.json of a sweep": Kind(["s/best.json"], [from_best], [str(best)]),
        "database of a sweep": Kind(
            ["s.db"],
            [Reader(sweeping.words(place), lambda: (sweeping.outcome(place / "s"), json.loads(best.read_bytes())))],
        ),
        "file of wg.save": Kind([saved_learner(place)[0].name], [], [str(place / "saved.safetensors")]),
    }


def metrics_of(file: Path) -> object:
    return json.loads(file.read_bytes())["metrics"]


def command_line() -> None:
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("--flips", type=int, default=200, help="of each kind of file")
    form.add_argument("--given", type=int, default=20, help="how many of these are given to every command")
    form.add_argument("--seconds", type=float, default=float("inf"), help="of each kind of file")
    form.add_argument("--only", nargs="+")
    form.add_argument("--seed", type=int, default=0)
    form.add_argument("--record", type=Path, help="where the counts are kept, as results/reliability.json")
    given = form.parse_args()
    crashes.set_up()
    problems = 0
    with tempfile.TemporaryDirectory(prefix="warpgrad-flips-", dir=crashes.MEMORY) as folder:
        place, template = Path(folder) / "work", Path(folder) / "template"
        place.mkdir()
        found = kinds(place)
        shutil.copytree(place, template)
        for name, kind in found.items():
            if given.only and name not in given.only:
                continue
            counts = flipped(name, kind, place, template, given.flips, given.given, given.seed, given.seconds)
            problems += len(counts["failures"])  # type: ignore[arg-type]
            told = ", ".join(f"{key} {value}" for key, value in counts.items() if key != "failures")
            print(f"{name}: {told}, {len(counts['failures'])} failures", flush=True)  # type: ignore[arg-type]
            put_on_record(given.record, "flips", name, counts)
    sys.exit(1 if problems else 0)


def flipped(
    name: str, kind: Kind, place: Path, template: Path, flips: int, read: int, seed: int, seconds: float
) -> dict[str, object]:
    """Counts of what readers of damaged files did; `failures` are what they should not have done."""
    dice, seen, failures = random.Random(f"{name} {seed}"), Counter[str](), []
    renew(place, template)
    expected: list[object] = []
    end = time.monotonic() + seconds
    for number in range(flips):
        file = dice.choice(kind.files)
        data = (template / file).read_bytes()
        twin = template / file.replace("run/", f"{TWIN}/", 1)
        how, damaged = harmed(data, dice, twin.read_bytes() if twin.exists() else data)
        where = f"{how} of {file}"
        readers = kind.readers if number < read and time.monotonic() < end else []
        if readers and not expected:
            for reader in kind.readers:
                renew(place, template)
                assert (ended := crashes.attempt(reader.words, place)).code == 0, ended
                expected.append(reader.outcome())
            renew(place, template)
        if not readers and kind.verified is None:
            break
        seen["flips" if how.startswith("bit") else "otherwise"] += 1
        for reader, outcome in zip(readers, expected, strict=False):
            (place / file).write_bytes(damaged)
            ended = crashes.attempt(reader.words, place)
            seen["commands"] += 1
            if ended.code in (2, 3):
                seen["refused"] += 1
                if ended.said.count("warpgrad: ") != 1 or "should not have happened" in ended.said:
                    failures.append(f"{where}, {reader.words[0]}: {ended.said[-300:]}")
            elif ended.code != 0 or "Traceback" in ended.said:
                failures.append(f"{where}, {reader.words[0]} ends with {ended.code}: {ended.said[-300:]}")
            elif reader.outcome() != outcome:
                failures.append(f"{where}: {reader.words[0]} accepts it silently, and ends with another outcome")
            else:
                seen["as if whole"] += 1
            renew(place, template)
        if kind.verified is not None:
            (place / file).write_bytes(damaged)
            seen["verified"] += 1
            try:
                whole = [list(verified_parts(Path(path))) for path in kind.verified]
                failures.append(f"{where}: verify accepts it as {whole}")
            except WarpgradError:
                seen["refused by verify"] += 1
            except Exception as error:
                failures.append(f"{where}: verify raises {error!r}")
            (place / file).write_bytes(data)
    for failure in failures:
        print(f"{name}, {failure}", flush=True)
    return {**seen, "failures": failures}


def harmed(data: bytes, dice: random.Random, twin: bytes) -> tuple[str, bytes]:
    """How a file was damaged, and what it is then: never what it was."""
    place = dice.randrange(len(data))
    end = min(len(data), place + 512)
    others = {
        f"cut off after {place}": data[:place],
        f"zeros from {place} to {end}": data[:place] + bytes(end - place) + data[end:],
        "twice the content": data + data,
        "the twin": twin,
    }
    how = dice.choice(list(others))
    if dice.randrange(4) == 0 and others[how] != data:
        return how, others[how]
    bit = dice.randrange(8)
    return f"bit {8 * place + bit}", data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def renew(place: Path, template: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(template, place)


if __name__ == "__main__":
    command_line()

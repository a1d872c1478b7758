"""Every point at which a command can be cut off, and the proof that the same command ends as if it had not been.

    python -m tests.faults.crashes                      all points of all commands: `make crash`
    python -m tests.faults.crashes --every 20 run       a sample of the points of some
    python -m tests.faults.crashes --below run          faults between the C library and the system

Every attempt is a process of its own, forked from one that has imported everything and parsed the command line, so
that thousands take minutes. Workers of `reproduce` and `sweep` are forked likewise, and faults hit them as well as
their parent. All attempts are made in one place, in memory where the machine has a file system there.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.faults.rank import save_every_step
from tests.faults.record import on_record, put_on_record
from tests.faults.shim import KINDS, Below, Counter, Faults, is_below, start_below
from tests.support.text_encoder import save_tiny_encoder, sentences, write_csv
from warpgrad.cli import main as command_lines
from warpgrad.cli.main import main
from warpgrad.experiments import workers
from warpgrad.experiments.base import Row, RunTable
from warpgrad.io import PARTIAL
from warpgrad.training import checkpoint
from warpgrad.training.run_directory import CLEARING, TIMES, saved_checkpoints

TINY = ["--steps", "2", "--starts", "2", "--hidden", "3", "--test-surfaces", "2", "--test-starts", "2"]
SIZES = {"steps": 2, "starts": 2, "hidden": 3, "test_surfaces": 2, "test_starts": 2, "meta_steps": 2}
TABLE = RunTable("tiny", "Two tiny rows", "synthetic", (Row("a", SIZES), Row("b", {**SIZES, "lr": 0.05})), seeds=1)
TEXT = [
    *("--layers", "1", "--rank", "2", "--ways", "3", "--train-shots", "1", "2", "--steps", "2", "--meta-steps", "1"),
    *("--shots", "1", "--draws", "1", "--query", "3", "--together", "1", "--outside", "0", "--test-steps", "2"),
    *("--batch-shots", "2", "--meta-query", "2", "--validate-every", "1", "--validation-draws", "1"),
]
PATIENCE = 120.0
MEMORY = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)
"""Where attempts are made: what is promised of a power cut no kill can test, and a disk would only be slower."""


@dataclass(frozen=True)
class Scenario:
    """A command in a directory, what is there before it, and what must be there after it."""

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], object]
    before: Callable[[Path], None] = field(default=lambda place: None)


def run_words(place: Path, *, steps: int = 3, fresh: bool = False, name: str = "run") -> list[str]:
    more = ["--quiet", *(["--fresh"] if fresh else [])]
    return ["run", "synthetic", "--out", str(place / name), "--meta-steps", str(steps), *TINY, *more]


def outcome_of_run(run: Path) -> object:
    """All of a run but its times: weights and states, metrics, results, settings."""
    state = checkpoint.read_checkpoint(saved_checkpoints(run)[-1])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary, evaluation, config = (
        json.loads((run / f"{name}.json").read_text()) for name in ("summary", "evaluation", "config")
    )
    for record in (summary, evaluation, config, *lines):
        for name in [name for name in record if name in TIMES or "seconds" in name or name == "sha256"]:
            del record[name]
    kept = {name: value for name, value in state.items() if name not in ("seconds", "offset", "digest")}
    return [plain(kept), lines, summary, evaluation, config, sorted(path.name for path in run.rglob("*"))]


def plain(value: object) -> object:
    """A state as something that compares bit for bit."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist()]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else repr(value)


def outcome_of_data(place: Path) -> object:
    given = {"source", "encoder", "run", "data"} if (place / "encoder").exists() else {"source"}
    files = sorted(path for path in place.rglob("*") if path.is_file() and not given & set(path.parts))
    return [(str(path.relative_to(place)), path.read_bytes()) for path in files]


def outcome_of_runs(place: Path) -> object:
    runs = sorted(path.parent for path in place.rglob("config.json"))
    pages = sorted(str(path.relative_to(place)) for path in place.rglob("*.html"))
    return [(run.name, outcome_of_run(run)) for run in runs], pages


def pictures(place: Path) -> None:
    dice = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        folder = place / "source" / name
        folder.mkdir(parents=True)
        for number in range(2):
            Image.fromarray(dice.integers(0, 256, (4, 4), dtype=np.uint8)).save(folder / f"{number}.png")


def labelled_sentences(place: Path) -> None:
    (place / "source").mkdir()
    write_csv(place / "source" / "own.csv", sentences(12, 9))


def prepare_text(place: Path) -> list[str]:
    return ["data", "prepare", "text", "--source", str(place / "source" / "own.csv"), "--out", str(place / "data")]


def text_run(place: Path) -> None:
    """A run of text-intents on a tiny encoder, to be adapted."""
    labelled_sentences(place)
    save_tiny_encoder(place / "encoder")
    named = ["--data", str(place / "data"), "--encoder", str(place / "encoder"), "--out", str(place / "run")]
    for words in (prepare_text(place), ["run", "text-intents", "--method", "warp-maml", *TEXT, *named, "--quiet"]):
        assert (ended := attempt(words, place)).code == 0, ended


def adapt_words(place: Path) -> list[str]:
    own = ["--data", str(place / "source" / "own.csv"), "--encoder", str(place / "encoder")]
    return ["adapt", str(place / "run"), *own, "--out", str(place / "model")]


def half_a_run(place: Path) -> None:
    """A run that was killed after its second checkpoint."""
    ended = attempt(run_words(place), place, Counter(), 45, "kill")
    assert ended.code == -signal.SIGKILL, ended
    assert saved_checkpoints(place / "run"), "the kill came before the first checkpoint"


def whole_run(place: Path) -> None:
    assert attempt(run_words(place), place).code == 0


SCENARIOS = {
    "run": Scenario(run_words, lambda place: outcome_of_run(place / "run")),
    "resume": Scenario(run_words, lambda place: outcome_of_run(place / "run"), half_a_run),
    "extend": Scenario(partial(run_words, steps=5), lambda place: outcome_of_run(place / "run"), whole_run),
    "fresh": Scenario(partial(run_words, fresh=True), lambda place: outcome_of_run(place / "run"), whole_run),
    "prepare": Scenario(
        lambda place: ["data", "prepare", "folder", "--source", str(place / "source"), "--out", str(place / "data")],
        outcome_of_data,
        pictures,
    ),
    "sentences": Scenario(prepare_text, outcome_of_data, labelled_sentences),
    "adapt": Scenario(adapt_words, outcome_of_data, text_run),
    "reproduce": Scenario(lambda place: ["reproduce", "tiny", "--workers", "2", "--out", str(place)], outcome_of_runs),
    "sweep": Scenario(
        lambda place: [
            *("sweep", "synthetic", "--trials", "2", "--out", str(place), "--study", "s", "--meta-steps", "2", *TINY)
        ],
        outcome_of_runs,
    ),
}


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    operations: int


def attempt(words: list[str], place: Path, counter: Counter | None = None, at: int = -1, kind: str = "kill") -> Ended:
    """Carry a command out in a process of its own, with a fault before the operation `at`."""
    counter = counter or Counter()
    said = tempfile.TemporaryFile()  # noqa: SIM115 - read after the process has ended
    child = os.fork()
    if child == 0:
        os.setsid()
        prepare_child(said.fileno())
        FORKED.update(root=place, counter=counter, at=at, kind=kind)
        (Below if BELOW else Faults)(place, counter, at, kind).install()
        carry_out(words)
    code = waited(child)
    # What outlives its parent is an orphan, once it had the time to notice.
    said.seek(0)
    return Ended(code, said.read().decode(errors="replace"), counter.value)


def waited(child: int) -> int:
    end = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 999
        time.sleep(0.002)


def prepare_child(said: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, nothing, said)):
        os.dup2(descriptor, number)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def carry_out(words: list[str]) -> None:
    code: object = 99
    try:
        main(words)
    except SystemExit as stop:
        code = stop.code
    finally:
        os._exit(code if isinstance(code, int) else 98)


BELOW = is_below()
"""Whether faults strike below Python."""
FORKED: dict[str, object] = {}
"""What a worker that is forked from a command inherits."""


@cache
def parsed(words: tuple[str, ...]) -> partial[None]:
    """A command line, parsed once for all processes that are forked afterwards."""
    return PARSE(list(words))


PARSE = command_lines.parse


class ForkedWorker:
    """In place of `subprocess.Popen`: the worker is forked instead of started, which saves it its imports."""

    def __init__(self, command: list[str], *, env: dict[str, str], pass_fds: tuple[int, ...], **_: object) -> None:
        if "told" in FORKED:
            with Path(str(FORKED["told"])).open("a") as told:
                told.write(json.dumps(command[3:]) + "\n")
        reading, writing = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            prepare_child(writing)
            kept = {0, 1, 2, *pass_fds}
            for entry in list(Path("/proc/self/fd").iterdir()):
                if int(entry.name) not in kept:
                    with contextlib.suppress(OSError):
                        os.close(int(entry.name))
            os.environ.clear()
            os.environ.update(env)
            carry_out(command[3:])
        os.close(writing)
        self.stderr = os.fdopen(reading, errors="replace")

    def poll(self) -> int | None:
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


def remembered(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """The same function, which computes every value once."""
    found: dict[bytes, Any] = {}

    def wrapped(given: torch.Tensor) -> Any:
        key = given.numpy().tobytes()
        if key not in found:
            found[key] = function(given)
        return found[key]

    return wrapped


def set_up() -> None:
    """Checkpoints after every meta-step, workers by fork, a tiny table; once, in the process that forks."""
    from alembic.util import pyfiles
    from optuna.storages import RDBStorage

    import warpgrad.cli.report as report
    import warpgrad.cli.sweep
    import warpgrad.experiments.reproduction
    import warpgrad.report
    import warpgrad.sweep.page as sweep_page
    import warpgrad.sweep.trials  # noqa: F401 - imported once for all
    from warpgrad.experiments import find_experiment
    from warpgrad.experiments.synthetic import evaluation as surfaces
    from warpgrad.report.blocks import Section
    from warpgrad.report.page import Page

    save_every_step()
    report.find_table = lambda name: TABLE
    workers.subprocess = type("subprocess", (), {"Popen": ForkedWorker, "DEVNULL": -3, "PIPE": -1})  # type: ignore
    # Pages without charts, which take most of the time of a table and touch no file.
    page = Page("A page").add(Section("Alone"))
    type(find_experiment("synthetic")).page = lambda *_: page  # type: ignore[method-assign]
    sweep_page.study_page = lambda *_: page
    torch.set_num_threads(1)
    # What takes time and touches no file of a run is done once, in the process that is forked from.
    command_lines.parse = lambda words: parsed(tuple(words))
    workers.POLL_SECONDS = 0.01
    surfaces.minima = remembered(surfaces.minima)
    pyfiles.load_python_file = cache(pyfiles.load_python_file)
    RDBStorage("sqlite:///:memory:")
    # What is imported at first use is imported now, in the process that is forked from.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for words in (run_words(Path(folder)), ["report", f"{folder}/run", "--out", f"{folder}/page.html"]):
            with contextlib.suppress(SystemExit):
                main(words)
    gc.collect()
    gc.freeze()


def orphans(place: Path) -> list[int]:
    """Processes that still have files open below a place, or were told of it when they were started."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                told = os.fsencode(f"{place}/") in (process / "cmdline").read_bytes()
                if told or any(str(each.readlink()).startswith(f"{place}/") for each in (process / "fd").iterdir()):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def problems(scenario: Scenario, template: Path, place: Path, expected: object, at: int, kind: str) -> list[str]:
    """What is wrong after one fault and a repetition of the command."""
    found = []
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)
    words = scenario.words(place)
    first = attempt(words, place, None, at, kind)
    if first.code not in (0, 2, -signal.SIGKILL):
        found.append(f"exit code {first.code}")
    if "Traceback" in first.said or "should not have happened" in first.said or "Exception ignored" in first.said:
        found.append(f"said: {first.said.strip()[-300:]}")
    sentences_said = [line for line in first.said.splitlines() if line.startswith("warpgrad:")]
    if kind != "kill" and first.code == 2 and len(sentences_said) != 1:
        found.append(f"not one sentence: {first.said.strip()[-300:]}")
    end = time.monotonic() + 20
    while orphans(place) and time.monotonic() < end:
        time.sleep(0.01)
    if left := orphans(place):
        found.append(f"orphans {left}")
    second = attempt(words, place)
    made = scenario.outcome is outcome_of_data and "already exists" in second.said
    if second.code != 0 and not made:
        return [*found, f"the same command ends with {second.code}: {second.said.strip()[-300:]}"]
    try:
        if scenario.outcome(place) != expected:
            found.append("the outcome differs")
    except Exception as error:
        found.append(f"the outcome cannot be read: {error!r}")
    names = [str(path.relative_to(place)) for path in place.rglob("*")]
    if left_over := [name for name in names if PARTIAL in name or CLEARING in name or ".partial" in name]:
        found.append(f"left over: {left_over}")
    return found


def explore(
    name: str,
    every: int = 1,
    kinds: Iterable[str] = tuple(KINDS),
    begin: int = 1,
    seconds: float = float("inf"),
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Faults at every `every`-th operation of a scenario; counts of what was seen, problems told as they are.

    With `seconds`, no fault is begun after so many. Points come in an order of chance, the same each time, so that
    those that were reached are spread evenly; `before` are the counts of an earlier call, which is gone on with.
    """
    before = before or {}
    scenario, counts, failures = SCENARIOS[name], Counts[str](before.get("kinds", {})), list(before.get("failures", ()))
    stop = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="warpgrad-crash-", dir=MEMORY) as folder:
        # Paths are part of no outcome, and the same for all attempts, so that they are parsed once.
        place, template, told = (Path(folder) / part for part in ("work", "template", "told"))
        place.mkdir()
        scenario.before(place)
        shutil.copytree(place, template)
        FORKED["told"] = told
        whole = attempt(scenario.words(place), place)
        assert whole.code == 0, whole
        del FORKED["told"]
        expected = scenario.outcome(place)
        for words in (scenario.words(place), *map(json.loads, told.read_text().splitlines() if told.exists() else ())):
            command_lines.parse(words)
        points = [(kind, at) for at in range(begin, whole.operations + 1, every) for kind in kinds]
        random.Random(0).shuffle(points)
        for kind, at in points[before.get("faults", 0) :]:
            if time.monotonic() > stop:
                break
            counts[kind] += 1
            if wrong := problems(scenario, template, place, expected, at, kind):
                failures.append(f"{kind} before operation {at}: {'; '.join(wrong)}")
                print(f"{name}, {failures[-1]}", flush=True)
    return {
        "operations": whole.operations, "points": whole.operations * len(KINDS), "faults": sum(counts.values()),
        "kinds": dict(counts),
        "failures": failures,
    }  # fmt: skip


def command_line() -> None:
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], help="all if none is named")
    form.add_argument("--every", type=int, default=1)
    form.add_argument("--begin", type=int, default=1)
    form.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    form.add_argument("--seconds", type=float, default=float("inf"), help="of each scenario")
    form.add_argument("--record", type=Path, help="where the counts are kept; goes on with those of this commit there")
    form.add_argument("--below", action="store_true", help="faults below Python, in all code of the process")
    given = form.parse_args()
    if given.below:
        start_below()
    set_up()
    faults = failures = 0
    for name in given.scenarios or SCENARIOS:
        began = time.monotonic()
        part = name if given.begin == 1 else f"{name}, from operation {given.begin}"
        part = f"{part}, below Python" if given.below else part
        before = on_record(given.record, "crash", part)
        found = explore(name, given.every, given.kinds, given.begin, given.seconds, before)
        faults, failures = faults + found["faults"], failures + len(found["failures"])
        print(f"{name}: {found['operations']} operations, {found['faults']} faults, {len(found['failures'])} failures, "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        put_on_record(given.record, "crash", part, found)
    print(f"in all: {faults} faults, {failures} failures", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    command_line()

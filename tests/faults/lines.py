"""Hostile command lines: every option of every command with values that nobody should give, and hostile surroundings.

    python -m tests.faults.lines --lines 600

Each is carried out for real, in a folder of its own with pipes, devices, loops of links and damaged files in it. It
ends with 0, or with one sentence and exit code 2 (3 where numbers diverge); what works for longer than its time is
stopped by SIGTERM, and has to end in order too. Pipes, sockets and devices are still there afterwards, whatever was to
be written to them.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults import crashes
from tests.faults.record import on_record, put_on_record

COMMANDS = {
    "run synthetic": [*crashes.TINY, "--meta-steps", "1", "--out", "new"],
    "run omniglot": ["--meta-steps", "1", "--estimate"],
    "run few-shot": ["--estimate"],
    "run multi-shot": ["--estimate"],
    "run maze": ["--estimate"],
    "run continual": ["--estimate"],
    "run text-intents": ["--data", "text/data", "--encoder", "text/encoder", *crashes.TEXT, "--out", "new"],
    "evaluate run": [],
    "adapt text/run": ["--data", "text/source/own.csv", "--encoder", "text/encoder", "--out", "new"],
    "report run": ["--out", "page.html"],
    "reproduce tiny": ["--out", "table"],
    "sweep synthetic": ["--trials", "1", "--meta-steps", "1", *crashes.TINY, "--out", "sweeps"],
    "data prepare folder": ["--source", "pictures", "--out", "new"],
    "data prepare text": ["--source", "text/source/own.csv", "--out", "new"],
    "data prepare clinc150": ["--source", "text", "--out", "new"],
    "data prepare omniglot": ["--source", "text", "--out", "new"],
    "data prepare cifar-fs": ["--source", "text", "--out", "new"],
    "data draw": ["--alphabets", "1", "--out", "new"],
    "data montage": ["--data", "store", "--out", "new.png"],
    "verify run": [],
    "list": [],
    "demo": ["--seeds", "0"],
}
VALUES = [
    "", " ", "-1", "0", "1e400", "nan", "inf", "-inf", "9" * 40, "1.5", "true", "None", "[]", "{}", "é", "\udcff\udcfe",
    "a\nb", "a\x1b[2Jb", "..", "../..", "/", ".", "~", "~nobody/x", "/dev/zero", "/dev/full", "/dev/null",
    "/proc/self/mem", "null", "pipe", "loop", "unreadable", "directory", "run", "run/config.json", "run/metrics.jsonl",
    "missing/deep/er", "x" * 5000,
    "damaged.json", "deep.json", "list.json", "empty", "half.zip", "%s%n", "$(id)", "--", "-h", "a/b\\c", "text/model",
    "-0", "１２", "0x10", "1_000", "1e9", "9223372036854775808", "-9223372036854775809", "+1", "1e-400", "١", "½",
    "\u202e", "\ufeff1", "\ud800", "a" * 300, "run/checkpoints", "run/.lock", "store/images.bin", "store/header.json",
    "socket", "text/source/own.csv", "text/encoder", "run/", "./run/../run", "cuda", "mps", "xpu:0", "auto", "*",
    "sqlite:///missing/x.db", "postgresql://a:secret@127.0.0.1:1/x", "sqlite:////dev/full", "cuda:9", "meta", "cpu:x",
]  # fmt: skip
SURROUNDINGS = [
    {"WORLD_SIZE": "x"}, {"WORLD_SIZE": "2"}, {"WORLD_SIZE": "0", "RANK": "0"}, {"RANK": "-1", "WORLD_SIZE": "1"},
    {"WORLD_SIZE": "2", "RANK": "5", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
    {"COLUMNS": "x"}, {"COLUMNS": "0"},
    {"COLUMNS": "-5"}, {"LINES": "x"}, {"TERM": "\udcff"}, {"TERM": ""}, {"HOME": "/dev/null"}, {"HOME": ""},
    {"TMPDIR": "/missing"}, {"WARPGRAD_DATA": "/dev/zero"}, {"WARPGRAD_DATA": ""}, {"WARPGRAD_TIMEOUT": "x"},
    {"WARPGRAD_LIFELINE": "999"}, {"WARPGRAD_LIFELINE": "x"}, {"MPLBACKEND": "nothing"}, {"LANG": "xx", "LC_ALL": "xx"},
    {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "x"}, {"MASTER_ADDR": "256.0.0.1", "WORLD_SIZE": "2", "RANK": "0"},
    {"OMP_NUM_THREADS": "0"}, {"PYTHONHASHSEED": "x"}, {"XDG_CACHE_HOME": "/dev/null"}, {"WARPGRAD_DATA": "\udcff"},
    {"WARPGRAD_DATA": "loop"}, {"WARPGRAD_DATA": "~nobody"}, {"CUDA_VISIBLE_DEVICES": "x"}, {"TZ": "x"},
    {"TORCHELASTIC_RUN_ID": "x"}, {"NO_COLOR": "1", "FORCE_COLOR": "x"}, {"PYTHONIOENCODING": "ascii"},
]  # fmt: skip
STARTED = [
    ({"OMP_NUM_THREADS": "x"}, ""), ({"OMP_NUM_THREADS": "-3"}, ""), ({"PYTHONIOENCODING": "ascii"}, ""),
    ({"LC_ALL": "C", "PYTHONUTF8": "0"}, ""), ({"MPLBACKEND": "nothing"}, ""), ({"HOME": None}, ""),
    ({"PATH": None}, ""),
    ({}, ">&-"), ({}, "2>&-"), ({}, ">&- 2>&-"), ({}, "<&- >&- 2>&-"), ({}, ">/dev/full"),
    ({}, ">/dev/full 2>/dev/full"),
    ({"TMPDIR": "/missing"}, ""), ({"COLUMNS": "x", "TERM": "dumb"}, ""),
]  # fmt: skip
"""Surroundings of a process that only a new one has: environment and redirections."""
PLACES = ("pipe", "socket", "null", "/dev/null")
"""Where no command may write; `--out` and `--record` of every command are pointed at each."""
SECONDS = 8


def surroundings(place: Path) -> None:
    """Files that a command should be able to work with, and those that it should not."""
    assert crashes.attempt(crashes.run_words(place, steps=1), place).code == 0
    (place / "text").mkdir()
    crashes.text_run(place / "text")
    assert crashes.attempt(crashes.adapt_words(place / "text"), place).code == 0
    crashes.pictures(place)
    (place / "source").rename(place / "pictures")
    store = ["data", "prepare", "folder", "--source", str(place / "pictures"), "--out", str(place / "store")]
    assert crashes.attempt(store, place).code == 0
    os.mkfifo(place / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(place / "socket"))
    (place / "loop").symlink_to("loop")
    if os.geteuid() == 0:
        os.mknod(place / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (place / "directory").mkdir()
    (place / "unreadable").write_text("x")
    (place / "unreadable").chmod(0)
    (place / "empty").write_text("")
    (place / "damaged.json").write_bytes(b'{"seed": 1\xff')
    (place / "deep.json").write_text("[" * 50_000)
    (place / "list.json").write_text("[1, 2]")
    (place / "half.zip").write_bytes(b"PK\x03\x04" + bytes(40))


def options(words: list[str], place: Path) -> list[str]:
    """The options that the help of a command names."""
    told = tempfile.TemporaryFile()  # noqa: SIM115 - read after the process has ended
    ended(words=[*words, "--help"], place=place, out=told.fileno())
    told.seek(0)
    return sorted(set(re.findall(r"--[a-z][a-z0-9-]+", told.read().decode(errors="replace"))) - {"--help"})


def ended(words: list[str], place: Path, environment: dict[str, str] | None = None, out: int | None = None):
    """(exit code, what it said, whether it was stopped) of a command line in a process of its own."""
    said = tempfile.TemporaryFile()  # noqa: SIM115
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(place)
        crashes.prepare_child(said.fileno())
        if out is not None:
            os.dup2(out, 1)
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
        os.environ.update(environment or {})
        crashes.carry_out(words)
    code, stopped = waited(child)
    said.seek(0)
    return code, said.read().decode(errors="replace"), stopped


def kinds(place: Path) -> dict[str, int]:
    """What is at each of the places where no command may write."""
    found = [(name, place / name) for name in PLACES if os.path.lexists(place / name)]
    return {name: stat.S_IFMT(path.lstat().st_mode) for name, path in found}


def waited(child: int) -> tuple[int, bool]:
    began, stopped = time.monotonic(), False
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), stopped
        late = time.monotonic() - began
        if late > SECONDS and not stopped:
            os.kill(child, signal.SIGTERM)
            stopped = True
        if late > SECONDS + 60:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)


def wrong(code: int, said: str, stopped: bool) -> str | None:
    if any(sign in said for sign in ("Traceback", "should not have happened", "Exception ignored", "Fatal Python")):
        return said[-400:]
    if code not in ((0, 2, 3, 143) if stopped else (0, 2, 3)):
        return f"exit code {code}: {said[-300:]}"
    sentences = [line for line in said.splitlines() if line.startswith("warpgrad: ")]
    if code and len(sentences) != 1:
        return f"no sentence, or several: {said[-300:]}"
    if "secret" in said:
        return f"a password is shown: {said[-300:]}"
    if any(ord(letter) < 32 and letter not in "\n\r\t" for letter in said):
        return f"control characters: {said[-300:]!r}"
    return None


def random_line(dice: random.Random, known: dict[str, list[str]]) -> tuple[list[str], dict[str, str]]:
    """A command line with something wrong in it, or in the environment."""
    name = dice.choice(list(COMMANDS))
    words = [*name.split(), *COMMANDS[name]]
    match dice.randrange(4):
        case 0:
            return words, dice.choice(SURROUNDINGS)
        case 1 if len(words) > 1:
            words[dice.randrange(1, len(words))] = dice.choice(VALUES)
        case _:
            for _ in range(dice.choice([1, 1, 2])):
                words += [*([dice.choice(known[name])] if known[name] else []), dice.choice(VALUES)]
    return words, {}


def started(place: Path) -> list[str]:
    """Surroundings that need a process of their own."""
    failures = []
    for change, redirection in STARTED:
        environment = {**os.environ, **{name: value for name, value in change.items() if value is not None}}
        for name in (name for name, value in change.items() if value is None):
            environment.pop(name)
        for words in ("list", "verify run", "run synthetic --out run --meta-steps 1 --fresh " + " ".join(crashes.TINY)):
            command = f"exec {sys.executable} -m warpgrad {words} {redirection}"
            done = subprocess.run(
                ["/bin/sh", "-c", command], cwd=place, env=environment, capture_output=True, text=True, check=False
            )
            full = "full" in redirection or ">&-" in redirection
            lines = [line for line in done.stderr.splitlines() if line.startswith("warpgrad: ")]
            bad = done.returncode not in ((0, 2, 141) if full else (0, 2)) or (done.returncode == 2 and len(lines) != 1)
            if "Traceback" in done.stderr or "should not" in done.stderr or (bad and "2>" not in redirection):
                failures.append(f"{change} {redirection} {words}: {done.returncode} {done.stderr[-300:]}")
    return failures


def command_line() -> None:
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("--lines", type=int, default=600)
    form.add_argument("--seconds", type=float, default=float("inf"))
    form.add_argument("--seed", type=int, default=0)
    form.add_argument("--record", type=Path, help="where the counts are kept; goes on with those of this commit there")
    given = form.parse_args()
    crashes.set_up()
    os.environ.pop("WARPGRAD_DATA", None)
    kept = on_record(given.record, "lines", "command lines") or {"failures": []}
    seen = Counter({name: count for name, count in kept.items() if type(count) is int})
    dice, failures = random.Random(f"{given.seed} {seen['lines']}"), list(kept["failures"])
    with tempfile.TemporaryDirectory(prefix="warpgrad-lines-", dir=crashes.MEMORY) as folder:
        place, template = Path(folder) / "work", Path(folder) / "template"
        place.mkdir()
        surroundings(place)
        known = {name: options(name.split(), place) for name in COMMANDS}
        subprocess.run(["cp", "-a", str(place), str(template)], check=True)
        before, end = kinds(place), time.monotonic() + given.seconds
        pointed = [
            [*name.split(), *COMMANDS[name], option, target]
            for name in COMMANDS
            for option in ("--out", "--record")
            if option in known[name]
            for target in before
        ]
        while (seen["places"] < len(pointed) or seen["lines"] < given.lines) and time.monotonic() < end:
            kind = "places" if seen["places"] < len(pointed) else "lines"
            words, environment = (pointed[seen["places"]], {}) if kind == "places" else random_line(dice, known)
            subprocess.run(["rm", "-rf", str(place)], check=True)
            shutil.copytree(template, place, symlinks=True, copy_function=copied)
            code, said, stopped = ended(words, place, environment)
            seen[kind] += 1
            seen["stopped" if stopped else "done" if code == 0 else "refused"] += 1
            problem = wrong(code, said, stopped)
            if problem is None and kinds(place) != before:
                problem = f"replaced {dict(before.items() - kinds(place).items())}: {said[-300:]}"
            if problem is None and (left := crashes.orphans(place)):
                time.sleep(5)
                problem = f"orphans {left}" if crashes.orphans(place) else None
            if problem is not None:
                failures.append(f"{words!r} {environment}: {problem}")
                print(failures[-1][-900:], flush=True)
        if seen["lines"] >= given.lines and not seen["started anew"]:
            seen["started anew"] = 3 * len(STARTED)
            failures += (anew := started(place))
            print("\n".join(anew), flush=True)
    print(f"{dict(seen)}, {len(failures)} failures", flush=True)
    put_on_record(given.record, "lines", "command lines", {**seen, "failures": failures})
    sys.exit(1 if failures else 0)


def copied(source: str, to: str) -> object:
    """Pipes, sockets and devices are made anew: they cannot be copied."""
    found = Path(source).stat()
    return shutil.copy2(source, to) if stat.S_ISREG(found.st_mode) else os.mknod(to, found.st_mode, found.st_rdev)


if __name__ == "__main__":
    command_line()

"""Several processes that share a run: the same numbers as one, and none left waiting when something happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import warpgrad as wg
from tests.support import ROOT, distributed_job
from tests.support.problems import relative_error
from warpgrad.algorithms.ranks import Ranks
from warpgrad.cli.main import LAUNCHERS, dispatch, main
from warpgrad.experiments.workers import Worker
from warpgrad.training import checkpoint
from warpgrad.training.distributed import TIMEOUT, current_ranks, shared
from warpgrad.training.run_directory import TIMES

JOB = ROOT / "tests" / "support" / "distributed_job.py"
TINY = ["--meta-steps", "3", "--steps", "3", "--starts", "3", "--test-surfaces", "3", "--test-starts", "2"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    given = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **given, **more}


def start(words: list[str], ranks: int = 2, **more: str) -> list[subprocess.Popen[str]]:
    """Ranks as torchrun starts them, but with nobody to watch over them."""
    port = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_PORT=port, **more),
        )
        for rank in range(ranks)
    ]  # fmt: skip


def ended(jobs: list[subprocess.Popen[str]], timeout: float = 600) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; none may hang."""
    try:
        said = [job.communicate(timeout=timeout) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    return [(job.returncode, *words) for job, words in zip(jobs, said, strict=True)]


def torchrun(words: list[str], *options: str, **more: str) -> subprocess.Popen[str]:
    given = [*options] or ["--nproc-per-node", "2", "--master-port", str(free_port())]
    command = [sys.executable, "-m", "torch.distributed.run", *given, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more)
    )  # fmt: skip


def lines(run: Path) -> list[dict]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def final(run: Path) -> dict:
    state = checkpoint.read_checkpoint(sorted((run / "checkpoints").glob("step-*"))[-1])
    # The checksum is of lines with times in them; without these, the lines are compared by `lines`.
    return {**state, "seconds": 0.0, "offset": 0, "digest": None}


def same(first, second) -> bool:
    """Bit for bit."""
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return set(first) == set(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def wait_for_lines(run: Path, count: int, job: subprocess.Popen[str]) -> None:
    began, path = time.monotonic(), run / "metrics.jsonl"
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert time.monotonic() - began < 600
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.02)


def test_shares_cover_all_work_once():
    for size in range(1, 6):
        for count in range(8):
            ranks = [Ranks() for _ in range(size)]
            for index, rank in enumerate(ranks):
                rank.size, rank.index = size, index
            shares = [list(range(count))[rank.share(count)] for rank in ranks]
            assert [task for share in shares for task in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_is_alone():
    ranks = current_ranks(torch.device("cpu"))
    assert type(ranks) is Ranks
    assert (ranks.size, ranks.first, ranks.total([2.0]), ranks.broadcast(b"x")) == (1, True, [2.0], b"x")


def test_a_timeout_that_is_none_is_refused(monkeypatch):
    for value in ("soon", "0", "inf"):
        monkeypatch.setenv(TIMEOUT, value)
        with pytest.raises(wg.WarpgradError, match=f"{TIMEOUT}={value}: the seconds that a rank waits"):
            current_ranks(torch.device("cpu"))
    # The option goes before the variable.
    current_ranks(torch.device("cpu"), timeout=5.0)
    with pytest.raises(wg.WarpgradError, match=r"timeout=-1.0: the seconds that a rank waits"):
        current_ranks(torch.device("cpu"), timeout=-1.0)


def test_the_command_line_hands_its_timeout_to_the_ranks(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr("warpgrad.training.distributed.current_ranks", lambda device, *, timeout: given.append(timeout))
    monkeypatch.setattr("warpgrad.experiments.runner.execute", lambda *_: {"steps": 1, "metrics": {"score": 1.0}})
    for words in (["--timeout", "7.5"], []):
        dispatch(["run", "synthetic", "--out", str(tmp_path), *words])
    assert given == [7.5, None]


def as_a_rank(monkeypatch, rank: int, **more: str) -> None:
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": str(rank), **more}
    for name, value in names.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("command", LAUNCHERS)
def test_commands_that_start_processes_refuse_torchrun_in_one_sentence(monkeypatch, capsys, command):
    for rank, sentence in [
        (0, f"warpgrad: 'warpgrad {command}' starts its own processes: run the command without torchrun.\n"),
        (1, ""),
    ]:
        as_a_rank(monkeypatch, rank)
        with pytest.raises(SystemExit) as stopped:
            main([command, "synthetic"])
        assert stopped.value.code == 2
        assert capsys.readouterr().err == sentence


def test_workers_of_reproduce_are_no_ranks(monkeypatch):
    """All that torchrun sets is gone from their environment, and nothing else."""
    torchrun_names = ("LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
                      "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID")  # fmt: skip
    as_a_rank(monkeypatch, 1, KEPT="yes", RANKS="yes", **dict.fromkeys(torchrun_names, "1"))
    assert shared()
    script = "import json, os, sys; print(json.dumps(dict(os.environ)), file=sys.stderr)"
    worker = Worker([sys.executable, "-c", script])
    worker.process.wait()
    found = json.loads(worker.last_words)
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *torchrun_names} & set(found)
    assert (found["KEPT"], found["RANKS"], found["OMP_NUM_THREADS"]) == ("yes", "yes", "1")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    """All cases of distributed_job.py on two ranks whose models were drawn differently."""
    place = tmp_path_factory.mktemp("equality")
    (code, _, said), (other_code, _, other_said) = ended(start([str(JOB), "equality", str(place)]))
    assert (code, other_code) == (0, 0), said + other_said
    assert "with η = 1 the updates of φ follow one another: ranks share the adaptation phase" in said
    assert "a meta-step has 1 task(s) for 2 ranks: 1 of them will wait" in said
    assert other_said == ""
    return [checkpoint.read_checkpoint(place / f"rank{rank}.safetensors") for rank in range(2)]


@pytest.mark.parametrize("name", distributed_job.CASES)
def test_two_ranks_do_what_one_does(two_ranks, name):
    """θ0, φ, rule and prior after three meta-steps in float64; three tasks or one on two ranks; metrics too."""
    expected, (found, other) = distributed_job.one_case(name), (ranks[name] for ranks in two_ranks)
    assert same(found, other), "ranks differ"
    for group, values in expected["weights"].items():
        if values:
            assert relative_error(found["weights"][group], values) < 1e-12
    for record, single in zip(found["records"], expected["records"], strict=True):
        assert record == pytest.approx(single, rel=1e-12)


def test_nan_on_one_rank_stops_all_with_its_sentence(tmp_path):
    for code, _, said in ended(start([str(JOB), "rotten", str(tmp_path)])):
        assert code == 2
        assert "warpgrad: meta-step 2: the task loss of task 'rotten' is inf at step 0" in said
        assert "Traceback" not in said
    assert final(tmp_path / "run")["step"] == 2 == len(lines(tmp_path / "run"))


@pytest.mark.slow
def test_a_silent_rank_does_not_keep_the_others_for_ever(tmp_path):
    """Nobody watches over these ranks: the timeout alone ends the waiting."""
    silent = start([str(JOB), "deadly", str(tmp_path)], DIE="1:2:sleep", **{TIMEOUT: "20"})
    try:
        said = silent[0].communicate(timeout=600)[1]
    finally:
        for job in silent:
            job.kill()
        silent[1].communicate()
    assert silent[0].returncode == 2, said
    assert "rank 0 of 2 waited 20 s for the other ranks without an answer: a rank hangs, or its machine is down" in said
    assert final(tmp_path / "run")["step"] == 2


def test_a_dead_rank_does_not_keep_the_others(tmp_path):
    """Nobody watches over these ranks: its closed connection ends the waiting."""
    (code, _, said), (killed, *_) = ended(start([str(JOB), "deadly", str(tmp_path)], DIE="1:2:kill"))
    assert (code, killed) == (2, -signal.SIGKILL), said
    assert "rank 0 of 2 lost another rank, which has stopped" in said
    assert final(tmp_path / "run")["step"] == 2


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("unbroken")
    for code, _, said in ended(start([str(JOB), "deadly", str(place)])):
        assert code == 0, said
    return place / "run"


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_torchrun_restarts_after_a_kill_and_ends_with_the_same_bits(tmp_path, unbroken, rank):
    job = torchrun(
        [str(JOB), "deadly", str(tmp_path)], "--nproc-per-node", "2", "--master-port", str(free_port()),
        "--max-restarts", "1", DIE=f"{rank}:3:kill",
    )  # fmt: skip
    ((code, _, said),) = ended([job])
    assert code == 0, said
    # torchrun names the rank whose end it sees first: the killed one, or the one that lost it.
    assert "exitcode: -9" in said or "lost another rank" in said, "nothing was killed"
    assert lines(tmp_path / "run") == lines(unbroken)
    assert same(final(tmp_path / "run"), final(unbroken))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_torchrun_saves_and_leaves_nobody_behind(tmp_path, number):
    """With checkpoints an hour apart, only the one written on the signal can save the work."""
    run = tmp_path / "run"
    job = torchrun([str(JOB), "stream", str(tmp_path)])
    wait_for_lines(run, 2, job)
    job.send_signal(number)
    ended([job])
    saved = lines(run)
    assert final(run)["step"] == len(saved) >= 2
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [command for command in commands if str(tmp_path).encode() in command]
    # One process goes on where two have stopped.
    distributed_job.run(tmp_path, wg.FunctionFamily, len(saved) + 1)
    assert lines(run)[:-1] == saved


def test_the_command_line_on_two_ranks(tmp_path):
    """Rank 0 alone writes and speaks; the numbers are those of one process."""
    words = ["-m", "warpgrad", "run", "synthetic", *TINY, "--quiet", "--out"]
    single = subprocess.Popen([sys.executable, *words, str(tmp_path / "one")], env=environment())
    (first, other), run = ended(start([*words, str(tmp_path / "two")])), tmp_path / "two"
    assert single.wait(timeout=600) == 0
    assert (first[0], other[0]) == (0, 0), first[2] + other[2]
    assert "synthetic, warpgrad, preset paper, seed 0: 3 meta-steps" in first[1]
    assert other[1:] == ("", "")
    for found, expected in zip(lines(run), lines(tmp_path / "one"), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)  # float32
    summary = json.loads((run / "summary.json").read_text())
    assert summary["hardware"]["processes"] == 2
    assert summary["metrics"].keys() == json.loads((tmp_path / "one" / "summary.json").read_text())["metrics"].keys()


@pytest.mark.slow
def test_refusals_are_said_once_and_stop_all_ranks(tmp_path):
    """What rank 0 alone finds in the directory; and a method that meta-learns nothing has nothing to share."""
    words = ["-m", "warpgrad", "run", "synthetic", *TINY, "--quiet", "--out", str(tmp_path / "run")]
    assert [code for code, *_ in ended(start(words))] == [0, 0]
    plain = [
        "-m",
        "warpgrad",
        "run",
        "continual",
        "--preset",
        "small",
        "--method",
        "no-warp",
        "--out",
        str(tmp_path / "plain"),
    ]
    for refused, sentence in [
        ([*words, "--seed", "1"], "has seed = 0, not 1"),
        (plain, "meta-learns nothing that several processes could share; run it without torchrun"),
    ]:
        first, other = ended(start(refused))
        assert (first[0], other[0]) == (2, 2)
        assert sentence in first[2]
        assert other[2] == ""


@pytest.mark.slow
def test_two_machines_meet_at_a_rendezvous(tmp_path, unbroken):
    """Two torchruns, each with an address of its own and one rank; the second machine's rank is killed once."""
    endpoint = f"127.0.0.1:{free_port()}"
    given = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    machines = [
        torchrun(
            [str(JOB), "deadly", str(tmp_path)], *given, "--rdzv-id", "two", "--max-restarts", "2",
            "--local-addr", address, DIE="1:3:kill",
        )
        for address in ("127.0.0.1", "127.0.0.2")
    ]  # fmt: skip
    results = ended(machines)
    assert [code for code, *_ in results] == [0, 0], results
    assert any("exitcode: -9" in said for *_, said in results), "nothing was killed"
    assert lines(tmp_path / "run") == lines(unbroken)
    assert same(final(tmp_path / "run"), final(unbroken))


@pytest.mark.slow
def test_every_experiment_runs_on_two_ranks(tmp_path):
    small = {
        "maze": ["--method", "warp-rnn", "--meta-steps", "2", "--episodes", "2", "--length", "5", "--warp-every", "2",
                 "--validate-every", "1", "--validation-episodes", "2", "--test-episodes", "2"],
        "continual": ["--method", "warpgrad", "--meta-steps", "2", "--tasks", "3", "--steps-per-subtask", "2",
                      "--test-tasks", "2", "--validation-tasks", "2", "--validate-every", "1"],
        "omniglot": ["--method", "finetuning", "--data", "drawn", "--meta-steps", "1", "--meta-batch", "3", "--steps",
                     "2", "--tasks", "2", "--filters", "4", "--test-steps", "2"],
    }  # fmt: skip
    for name, options in small.items():
        words = ["-m", "warpgrad", "run", name, "--preset", "small", *options, "--quiet"]
        alone = subprocess.run(
            [sys.executable, *words, "--out", str(tmp_path / name / "one")], env=environment(), check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert alone.returncode == 0, alone.stderr
        for code, _, said in ended(start([*words, "--out", str(tmp_path / name / "two")])):
            assert code == 0, said
        for found, expected in zip(lines(tmp_path / name / "two"), lines(tmp_path / name / "one"), strict=True):
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)  # float32

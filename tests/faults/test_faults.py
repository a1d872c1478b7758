"""A sample of the points of `make crash`, and faults that no shim can make."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import runpy
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import warpgrad as wg
from tests.faults import crashes
from tests.support.text_encoder import sentences, write_csv
from tests.support.training_job import train
from warpgrad.algorithms.replay import ReplayBudget, ReplayBuffer
from warpgrad.cli.main import main
from warpgrad.data.tasks.intents import cached_states
from warpgrad.experiments.workers import Worker
from warpgrad.io import LIFELINE, DamagedError, read_json, write_checksums, write_json
from warpgrad.training import checkpoint, run_directory
from warpgrad.training.run_directory import CLEARING, LOCK, RunDirectory, identity, reserved, saved_checkpoints
from warpgrad.version import commit

COMMAND = [sys.executable, "-m", "warpgrad"]
TINY = ["--meta-steps", "2", *crashes.TINY, "--quiet"]


def says(words: list[str], capsys) -> tuple[int, str]:
    """The exit code of a command in this process, and what it said on stderr."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code), capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit, match="0"):
        main(["run", "synthetic", "--out", str(run), *TINY])
    return run


def copied(run: Path, to: Path) -> Path:
    import shutil

    return Path(shutil.copytree(run, to / "run"))


def test_a_sample_of_faults_changes_no_outcome():
    """One process forks all: a sixth of the kills of a first run, and some of each kind elsewhere."""
    script = (
        "from tests.faults import crashes; crashes.set_up(); "
        "a = crashes.explore('run', every=9, kinds=['kill', 'full'], begin=4); "
        "b = crashes.explore('fresh', every=16, kinds=['kill'], begin=2); "
        "c = crashes.explore('prepare', every=12, kinds=['kill', 'ENOSPC'], begin=3); "
        "raise SystemExit(bool(a['failures'] + b['failures'] + c['failures']))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_flipped_bit_in_a_checkpoint_is_refused_or_overcome(tmp_path, caplog):
    run, dice = tmp_path / "run", random.Random(1)
    train(str(run), 4, checkpoint_seconds=0.0)
    newest, whole = saved_checkpoints(run)[-1], saved_checkpoints(run)[-1].read_bytes()
    key = 8 * whole.index(b'"warpgrad":')
    for bit in [*(dice.randrange(8 * len(whole)) for _ in range(200)), *range(key, key + 80)]:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        newest.write_bytes(flipped)
        with pytest.raises(DamagedError):  # what the checkpoint before is used for
            checkpoint.read_checkpoint(newest)
    train(str(run), 4, checkpoint_seconds=0.0)
    assert "Resuming from step-00000003" in caplog.text
    assert checkpoint.packed(checkpoint.read_checkpoint(newest))  # made again
    expected, found = checkpoint.read_checkpoint(newest), None
    newest.write_bytes(whole)
    found = checkpoint.read_checkpoint(newest)
    for state in (expected, found):
        del state["seconds"], state["offset"], state["digest"]
    assert crashes.plain(expected) == crashes.plain(found)


def test_a_checkpoint_without_a_checksum_is_taken_and_said(tmp_path, caplog, monkeypatch):
    import safetensors.torch

    train(str(tmp_path / "run"), 2)
    path = saved_checkpoints(tmp_path / "run")[-1]
    with safetensors.safe_open(str(path), "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path.write_bytes(safetensors.torch.save(tensors, {"warpgrad": header["warpgrad"]}))
    train(str(tmp_path / "run"), 3)
    assert "has no checksum: it is loaded unverified" in caplog.text


def test_verify_passes_over_a_checkpoint_that_training_has_replaced(finished, tmp_path, capsys, monkeypatch):
    """A process that is training deletes the oldest checkpoint whenever it saves, also after the files were listed."""
    run = copied(finished, tmp_path)
    listed = [run / "checkpoints" / "step-00000000.safetensors", *saved_checkpoints(run)]
    monkeypatch.setattr(run_directory, "saved_checkpoints", lambda path: listed)
    assert says(["verify", str(run)], capsys) == (0, "")


@pytest.mark.parametrize("change", [{}, {"final": None}, {"curvature": "x"}, {"matched": 2**63}])
def test_results_that_no_version_writes_are_on_no_page(finished, tmp_path, capsys, change):
    run = copied(finished, tmp_path)
    kept = read_json(run / "evaluation.json")
    write_json(run / "evaluation.json", {**kept, **change} if change else {}, seal=bool(change))
    code, said = says(["report", str(run), "--out", str(tmp_path / "page.html")], capsys)
    assert (code, "results of synthetic have unexpected entries" in said, said.count("\n")) == (2, True, 1)
    assert not (tmp_path / "page.html").exists()


def test_a_device_that_settings_name_and_torch_does_not_know_is_refused(finished, tmp_path, capsys):
    run = copied(finished, tmp_path)
    write_json(run / "config.json", {**read_json(run / "config.json"), "device": "../x"}, seal=True)
    code, said = says(["evaluate", str(run)], capsys)
    assert (code, "device '../x' is not available here" in said) == (2, True)


def test_verify_misses_checkpoints_and_sees_links_that_lead_nowhere(finished, tmp_path, capsys):
    run = copied(finished, tmp_path)
    (run / "checkpoints").rename(run / "elsewhere")
    code, said = says(["verify", str(run)], capsys)
    assert (code, "has no checkpoint" in said) == (2, True)
    (run / "elsewhere").rename(run / "checkpoints")
    (run / "evaluation.json").unlink()
    assert says(["verify", str(run)], capsys) == (0, "")
    (run / "evaluation.json").symlink_to("evaluation.json")
    code, said = says(["verify", str(run)], capsys)
    assert (code, "evaluation.json" in said) == (2, True)


def test_fresh_begins_to_delete_only_where_it_can_end(finished, tmp_path, capsys):
    """A folder of the user's in place of a file is left alone, and so is everything else until it is gone."""
    run = copied(finished, tmp_path)
    fresh = ["run", "synthetic", "--out", str(run), "--fresh", *TINY]
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    (run / "metrics.jsonl" / "mine").write_text("precious")
    there = sorted(run.rglob("*"))
    code, said = says(fresh, capsys)
    assert (code, "metrics.jsonl is a folder with files that are not part of a run" in said) == (2, True)
    assert sorted(run.rglob("*")) == there
    (run / "metrics.jsonl" / "mine").unlink()
    assert says(fresh, capsys)[0] == 0
    assert says(["verify", str(run)], capsys)[0] == 0


def flipped(path: Path, pattern: bytes) -> None:
    """Flip the lowest bit of the first byte that the group of a pattern matches."""
    data = path.read_bytes()
    place = re.search(pattern, data).start(1)
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


@pytest.mark.parametrize("name", ["config.json", "summary.json", "evaluation.json", "metrics.jsonl"])
@pytest.mark.parametrize("pattern", [rb'"(?:steps|seed|meta_loss)": (\d)', rb'seconds": \d*\.(\d)', rb'"(s)ha256": "'])
def test_verify_finds_every_flipped_bit(finished, tmp_path, capsys, name, pattern):
    """In numbers, in times, and in the name of the checksum itself."""
    run = copied(finished, tmp_path)
    assert says(["verify", str(run)], capsys) == (0, "")
    if not re.search(pattern, (run / name).read_bytes()):
        pytest.skip(f"{name} has nothing of the kind")
    flipped(run / name, pattern)
    code, said = says(["verify", str(run)], capsys)
    assert code == 2
    assert f"{name} is damaged" in said


def test_verify_finds_bits_that_change_no_value(tmp_path, capsys):
    write_json(tmp_path / "best.json", {"lr": 1e-05}, seal=True)
    assert says(["verify", str(tmp_path / "best.json")], capsys)[0] == 0
    (tmp_path / "best.json").write_bytes((tmp_path / "best.json").read_bytes().replace(b"1e-05", b"1E-05"))
    assert read_json(tmp_path / "best.json") == {"lr": 1e-05}
    code, said = says(["verify", str(tmp_path / "best.json")], capsys)
    assert (code, "not as they were written" in said) == (2, True)


@pytest.mark.parametrize("pattern", [rb'"meta_loss": \d\.(\d)', rb'seconds": \d*\.(\d)'])
def test_no_page_shows_metrics_that_are_damaged(finished, tmp_path, capsys, pattern):
    run = copied(finished, tmp_path)
    flipped(run / "metrics.jsonl", pattern)
    code, said = says(["report", str(run), "--out", str(tmp_path / "page.html")], capsys)
    assert (code, "metrics.jsonl is damaged" in said) == (2, True)
    assert not (tmp_path / "page.html").exists()


def test_metrics_beyond_the_last_checkpoint_are_those_of_the_next_meta_steps(finished, tmp_path, capsys):
    """Such as a run has that was killed; and not the same again."""
    run = copied(finished, tmp_path)
    metrics = (run / "metrics.jsonl").read_bytes()
    last = json.loads(metrics.splitlines()[-1])
    following = b"".join(json.dumps({**last, "step": last["step"] + more}).encode() + b"\n" for more in (1, 2))
    for more, expected in ((following, 0), (following[:-9], 0), (metrics, 2), (b"{}\n", 2), (b"x\n", 2)):
        (run / "metrics.jsonl").write_bytes(metrics + more)
        code, said = says(["verify", str(run)], capsys)
        assert (code, "metrics.jsonl is damaged" in said) == (expected, expected == 2), more


def test_settings_of_a_sweep_that_are_damaged_are_not_run(tmp_path, capsys):
    best = tmp_path / "best.json"
    write_json(best, {"experiment": "synthetic", "preset": "small", "lr": 0.25}, seal=True)
    words = ["run", "synthetic", "--config", str(best), "--out", str(tmp_path / "run"), *TINY]
    assert says(words, capsys)[0] == 0
    flipped(best, rb'"lr": 0\.(2)')
    code, said = says([*words, "--fresh"], capsys)
    assert (code, "best.json is damaged" in said) == (2, True)


def test_a_trial_whose_number_in_the_database_is_damaged_is_named(tmp_path, capsys):
    words = ["sweep", "synthetic", "--trials", "1", "--out", str(tmp_path), "--study", "s", *TINY[:-1]]
    assert says(words, capsys)[0] == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as database:
        database.execute("update trial_values set value = value * 2 where trial_id = 1")
        database.commit()
    code, said = says(words, capsys)
    assert (code, "for trial-0000, but its run in" in said) == (2, True)
    summary = tmp_path / "s" / "trial-0000" / "summary.json"
    write_json(summary, {**read_json(summary), "metrics": 1}, seal=True)
    code, said = says(words, capsys)
    assert (code, "for trial-0000, but its run in" in said) == (2, True)


def test_sentences_and_states_that_are_damaged_are_refused_or_made_again(tmp_path, capsys, caplog):
    source = write_csv(tmp_path / "own.csv", sentences(6, 2))
    assert says(["data", "prepare", "text", "--source", str(source), "--out", str(tmp_path / "text")], capsys)[0] == 0

    def states() -> torch.Tensor:
        encode = lambda texts: (torch.ones(len(texts), 2, 3), torch.ones(len(texts), 2))  # noqa: E731
        return cached_states(["a", "b"], encode, tmp_path / "text", "key").states

    kept = states()
    assert says(["verify", str(tmp_path / "text")], capsys)[0] == 0
    (cache,) = (tmp_path / "text").glob("states-*")
    cache.write_bytes(cache.read_bytes()[:-1] + b"\x01")
    code, said = says(["verify", str(tmp_path / "text")], capsys)
    assert (code, "damaged" in said) == (2, True)
    assert torch.equal(states(), kept)
    assert "is computed again" in caplog.text
    flipped(tmp_path / "text" / "text.json", rb"word(\d)")
    code, said = says(["verify", str(tmp_path / "text")], capsys)
    assert (code, "text.json is damaged" in said) == (2, True)


def test_a_folder_for_others_names_the_file_that_is_damaged(tmp_path, capsys):
    (tmp_path / "head.safetensors").write_bytes(b"weights")
    write_checksums(tmp_path)
    assert says(["verify", str(tmp_path)], capsys)[0] == 0
    (tmp_path / "head.safetensors").write_bytes(b"weighty")
    code, said = says(["verify", str(tmp_path)], capsys)
    assert (code, "head.safetensors is damaged" in said) == (2, True)


def test_nothing_is_deleted_where_every_checkpoint_is_damaged(tmp_path):
    run = tmp_path / "run"
    train(str(run), 3, checkpoint_seconds=0.0)
    whole = [path.read_bytes() for path in saved_checkpoints(run)]
    for path, data in zip(saved_checkpoints(run), whole, strict=True):
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(wg.WarpgradError, match=r"so are all 2 checkpoints of the run: restore it .* with --fresh"):
        train(str(run), 3)
    saved_checkpoints(run)[0].write_bytes(whole[0])
    train(str(run), 3)
    assert saved_checkpoints(run)[-1].stat().st_size


def test_a_lifeline_that_is_none_ends_nothing(monkeypatch, capsys):
    for descriptor in ("999", "x", "9" * 30):
        monkeypatch.setenv(LIFELINE, descriptor)
        assert says(["list"], capsys)[0] == 0
    # A process of its own, whose stderr is a pipe; it would end before it has listed anything.
    command = "import time; from warpgrad.cli.outer import follow_parent; follow_parent(); time.sleep(1)"
    done = subprocess.run([sys.executable, "-c", command], env={**os.environ, LIFELINE: "2"}, stderr=subprocess.PIPE)
    assert done.returncode == 0


def test_a_damaged_summary_is_made_again(finished, tmp_path, capsys):
    run = copied(finished, tmp_path)
    kept = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text("{")
    assert says(["run", "synthetic", "--out", str(run), *TINY], capsys)[0] == 0
    assert json.loads((run / "summary.json").read_text())["metrics"] == kept["metrics"]


def test_the_lock_lasts_until_the_summary_is_written(tmp_path):
    with reserved(tmp_path / "run"):
        RunDirectory(tmp_path / "run", {}).close()
        inner = RunDirectory(tmp_path / "run", {})
        with pytest.raises(wg.WarpgradError, match="another process is running"):
            RunDirectory(tmp_path / "run", {})
        inner.close()
        with pytest.raises(wg.WarpgradError, match="another process is running"), reserved(tmp_path / "run"):
            pass
    RunDirectory(tmp_path / "run", {}).close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_directory_is_gone_writes_into_no_other(tmp_path, replaced):
    run, elsewhere = RunDirectory(tmp_path / "run", {"seed": 0}), tmp_path / "elsewhere"
    run.begin_metrics(offset=0)
    run.path.rename(elsewhere)
    others = RunDirectory(run.path, {"seed": 0}) if replaced else None
    with pytest.raises(wg.WarpgradError, match="was removed, moved or replaced"):
        run.save(1, {"step": 1})
    assert run.path.exists() == replaced
    assert not saved_checkpoints(run.path)
    for opened in (run, *([others] if others else [])):
        opened.close()


def test_a_result_is_not_written_where_another_run_is_now(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"

    def moved(config: dict[str, object]) -> str:
        run.rename(tmp_path / "elsewhere")
        run.mkdir()
        return identity(config)

    monkeypatch.setattr("warpgrad.experiments.runner.identity", moved)
    code, said = says(["run", "synthetic", "--out", str(run), *TINY], capsys)
    assert (code, "was removed, moved or replaced" in said, list(run.iterdir())) == (2, True, [])


def test_a_deleted_directory_is_no_place_to_start_in(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    sentence = "warpgrad: the current directory is gone; change to another and repeat the command.\n"
    assert says(["list"], capsys) == (2, sentence)


def test_a_summary_of_other_settings_is_not_reported(finished, tmp_path, capsys):
    """Not even where the number of meta-steps is the same."""
    run = tmp_path / "other"
    assert says(["run", "synthetic", "--out", str(run), *TINY, "--seed", "1"], capsys)[0] == 0
    own = (run / "summary.json").read_bytes()
    for name in ("summary.json", "evaluation.json"):
        (run / name).write_bytes((finished / name).read_bytes())
    assert says(["run", "synthetic", "--out", str(run), *TINY, "--seed", "1"], capsys)[0] == 0
    found, expected = json.loads((run / "summary.json").read_bytes()), json.loads(own)
    assert (found["seed"], found["metrics"]) == (1, expected["metrics"])


@pytest.mark.parametrize(
    "names", [[], [LOCK], [LOCK, "checkpoints/"], [CLEARING, "metrics.jsonl"], [LOCK, ".partial-1-x"]]
)
@pytest.mark.parametrize("fresh", [False, True])
def test_no_directory_is_stuck(tmp_path, names, fresh):
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("")
    train(str(tmp_path), 1, fresh=fresh)
    assert {path.name for path in tmp_path.iterdir()} == {
        LOCK, "config.json", "metrics.jsonl", "checkpoints", "summary.json"
    }  # fmt: skip


def test_a_run_that_lost_its_settings_is_not_deleted_unasked(tmp_path):
    train(str(tmp_path), 1)
    (tmp_path / "config.json").unlink()
    with pytest.raises(wg.WarpgradError, match=r"but not its config\.json"):
        train(str(tmp_path), 1)
    assert saved_checkpoints(tmp_path)
    train(str(tmp_path), 1, fresh=True)


def test_links_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (LOCK, "metrics.jsonl", "config.json"):
        run = tmp_path / f"run-{name}"
        run.mkdir()
        (run / name).symlink_to(victim)
        for fresh in (False, True):
            with pytest.raises(wg.WarpgradError, match="is a link"):
                train(str(run), 1, fresh=fresh)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    train(str(run), 1)
    (run / "figures").symlink_to(elsewhere)
    with pytest.raises(wg.WarpgradError, match="is a link"):
        train(str(run), 1, fresh=True)
    assert victim.read_text() == "precious"
    assert list(elsewhere.iterdir()) == []


def test_pipes_are_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "config.json")
    code, said = says(["evaluate", str(tmp_path)], capsys)
    assert (code, "not a regular file" in said) == (2, True)


def test_a_loop_of_links_is_no_folder_of_pictures(tmp_path, capsys):
    loop = tmp_path / "birds"
    loop.symlink_to(loop.name)
    code, said = says(["data", "prepare", "folder", "--source", str(loop), "--out", str(tmp_path / "store")], capsys)
    assert (code, said) == (2, f"warpgrad: {loop} does not exist: give a folder of class folders, or a zip of one.\n")


def test_a_disk_that_is_too_small_for_the_replay_buffer_is_one_sentence(tmp_path):
    from tests.algorithms.test_replay import point

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(wg.WarpgradError, match=r"needs a scratch file of .* make room"):
            ReplayBuffer(100, ReplayBudget(memory=0, directory=tmp_path)).append(0, point(0), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_ends_with_its_parent_and_its_output_is_drained():
    loud = "import sys; sys.stderr.write('x' * 300_000 + chr(10) + 'last words' + chr(10))"
    worker = Worker([sys.executable, "-c", loud])
    worker.process.wait(30)
    assert worker.last_words == "last words"
    script = (
        "import sys, time; from warpgrad.experiments.workers import Worker; "
        "child = 'from warpgrad.cli.outer import follow_parent; follow_parent(); import time; time.sleep(600)'; "
        "worker = Worker([sys.executable, '-c', child]); print(worker.process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < end, "the worker outlives its parent"
        time.sleep(0.05)


def test_a_rank_whose_launcher_was_killed_before_it_had_begun_ends(tmp_path):
    """Its parent is another from its first line on; what it can tell by is that nobody keeps the store."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    launched = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    words = ["run", "synthetic", "--out", str(tmp_path / "run"), *TINY]
    done = subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, **rank, **launched},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 143


def test_a_rank_that_waits_inside_torch_ends_with_its_launcher_too():
    """Python hears no signal there: the thread that has noticed ends the process itself."""
    script = (
        "import signal; from warpgrad.cli import outer; "
        "outer.GRACE_SECONDS = 0.5; outer.store_is_gone = lambda: True; "
        "signal.signal(signal.SIGTERM, lambda *_: None); outer.follow_parent(); import time; "
        "[time.sleep(1) for _ in range(60)]"
    )
    launched = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    done = subprocess.run([sys.executable, "-c", script], env=launched, timeout=50, check=False)
    assert done.returncode == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_time_is_an_exit_code_and_a_sentence(tmp_path, number):
    """While modules are imported, and again while it is ending."""
    words = ["run", "synthetic", "--out", str(tmp_path / "run"), "--quiet"]
    # Where the tests themselves run under nohup, or in the background of a shell, these signals would be ignored.
    heard = partial(signal.signal, number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    job = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    maps = Path(f"/proc/{job.pid}/maps")
    while "libtorch" not in maps.read_text() and job.poll() is None:
        time.sleep(0.01)
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            job.send_signal(number)
        time.sleep(0.01)
    said = job.communicate(timeout=60)[1]
    assert (job.returncode, said) == (128 + number, "warpgrad: stopped; run the same command to resume.\n")


def test_a_signal_while_options_are_parsed_is_no_wrong_option(monkeypatch, capsys):
    def interrupted(_: object) -> None:
        raise SystemExit(128 + signal.SIGHUP)

    monkeypatch.setattr(
        "warpgrad.cli.main.application", lambda _: type("App", (), {"cli": lambda *_, **__: interrupted(0)})
    )
    assert says(["list"], capsys) == (129, "warpgrad: stopped; run the same command to resume.\n")


def test_a_signal_after_the_end_changes_no_exit_code():
    script = (
        "import atexit, os, signal, sys; from warpgrad.__main__ import main; "
        "atexit.register(lambda: [os.kill(os.getpid(), each) for each in (1, 2, 15)]); "
        "sys.argv = ['warpgrad', '--version']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "x"), ("RANK", "x"), ("MASTER_PORT", "x"), ("MASTER_PORT", "0"), ("RANK", "2")]
)
def test_what_no_ranks_can_work_with_is_refused(monkeypatch, capsys, name, value, tmp_path):
    for key, usual in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, usual)
    monkeypatch.setenv(name, value)
    code, said = says(["run", "synthetic", "--out", str(tmp_path / "run"), *TINY], capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{name}={value}" in said


def test_the_store_of_torchrun_listens_on_every_interface():
    """As SECURITY.md warns; where this fails, torch has learned to bind it, and the page can say how."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    listening = [line.split()[1] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert f"{'0' * 32}:{store.port:04X}" in listening


def test_debug_shows_the_traceback_and_nothing_else_does(monkeypatch, capsys):
    def broken(words):
        kinds = {"memory": MemoryError, "deep": RecursionError, "bug": KeyError, "library": ImportError}
        raise kinds[words[0]]("failed to map segment\nmore" if words[0] == "library" else "why\nmore")

    monkeypatch.setattr("warpgrad.cli.main.dispatch", broken)
    for word in ("memory", "deep", "bug", "library"):
        code, said = says([word], capsys)
        assert (code, said.count("\n"), "Traceback" in said) == (2, 1, False)
        assert ("not enough memory" in said) == (word in ("memory", "library"))
        assert "Traceback" in says([word, "--debug"], capsys)[1]


def test_what_torch_cannot_be_imported_under_is_one_sentence(tmp_path):
    words = [*COMMAND, "run", "synthetic", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "TORCH_LOGS": "nonsense"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "torch cannot be imported (ValueError: " in done.stderr


def test_control_characters_reach_no_terminal(tmp_path, capsys):
    code, said = says(["run", "synthetic", "--out", "a\x1b]0;owned\x07"], capsys)
    assert (code, "\x1b" in said) == (2, False)
    (tmp_path / "config.json").write_text('{"experiment": "a\\u001b[2Jb\\nc"}')
    code, said = says(["evaluate", str(tmp_path)], capsys)
    assert (code, said.count("\n"), "\x1b" in said, "\\x1b[2Jb\\nc" in said) == (2, 1, False, True)


def test_threads_are_a_setting_of_a_run(finished, tmp_path, capsys):
    run = copied(finished, tmp_path)
    code, said = says(["run", "synthetic", "--out", str(run), *TINY, "--threads", "2"], capsys)
    torch.set_num_threads(1)
    assert code == 2
    assert "has threads = 1, not 2" in said


def test_weights_that_are_no_numbers_are_refused(finished, tmp_path, capsys):
    run = copied(finished, tmp_path)
    newest = saved_checkpoints(run)[-1]
    state = checkpoint.read_checkpoint(newest)
    for value in state["weights"]["module"].values():
        value.fill_(float("nan"))
    checkpoint.write_checkpoint(newest, state)
    code, said = says(["evaluate", str(run)], capsys)
    assert code == 3
    assert "NaN or infinite" in said


def test_numbers_of_another_kind_are_no_weights(finished, tmp_path, capsys):
    for kind in (torch.bool, torch.int64, torch.complex64):
        run = copied(finished, tmp_path / str(kind))
        newest = saved_checkpoints(run)[-1]
        state = checkpoint.read_checkpoint(newest)
        name, value = next(iter(state["weights"]["module"].items()))
        state["weights"]["module"][name] = value.to(kind)
        checkpoint.write_checkpoint(newest, state)
        code, said = says(["evaluate", str(run)], capsys)
        assert (code, f"in {kind}, but the model has torch.float" in said) == (2, True)


def test_half_a_character_is_no_sentence(tmp_path, capsys):
    source = tmp_path / "own.jsonl"
    for text, label in (("\ud800", "a"), ("b", "\udfff")):
        rows = [{"text": text, "label": label}, {"text": "c", "label": "d"}]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code, said = says(["data", "prepare", "text", "--source", str(source), "--out", str(tmp_path / "x")], capsys)
        assert (code, said.count("\n"), "unpaired surrogate" in said) == (2, 1, True)
        assert not (tmp_path / "x").exists()


def test_a_password_in_the_wrong_place_is_not_shown(tmp_path, capsys):
    address = "postgresql://me:secret@127.0.0.1:1/x"
    for words in (["run", "synthetic", "--lr", address], ["data", "prepare", "omniglot", "--source", address]):
        code, said = says(words, capsys)
        assert (code, "secret" in said, "me:…@127.0.0.1" in said) == (2, False, True)


def test_a_database_that_fails_while_it_is_made_is_one_sentence(monkeypatch, tmp_path, capsys):
    import optuna

    def failing(*_: object, **__: object) -> None:
        raise optuna.exceptions.StorageInternalError("An exception is raised during the commit.")

    monkeypatch.setattr("warpgrad.sweep.study.RDBStorage", failing)
    code, said = says(["sweep", "synthetic", "--trials", "1", "--out", str(tmp_path), *TINY[:-1]], capsys)
    assert (code, "the study's storage cannot be opened" in said) == (2, True)


def test_somebody_elses_repository_is_not_ours(tmp_path):
    package = tmp_path / "lib" / "site-packages" / "warpgrad"
    package.mkdir(parents=True)
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "c"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert commit(package) is None
    (package / "commit.txt").write_text("0" * 40 + "\n")
    assert commit(package) == "0" * 40


def test_what_is_built_carries_the_commit_that_it_is_built_from(monkeypatch, tmp_path):
    """Wheel and source archive, by the commands of setup.py; `make dist` builds them for real."""
    import setuptools
    from setuptools.command.build_py import build_py
    from setuptools.command.sdist import sdist

    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    commands = runpy.run_path(str(Path(__file__).parents[2] / "setup.py"))
    monkeypatch.setitem(commands["keep_commit"].__globals__, "PACKAGE", ours(tmp_path / "ours"))
    head = commit(ours(tmp_path / "ours"))
    monkeypatch.setattr(build_py, "run", lambda _: None)
    monkeypatch.setattr(sdist, "make_release_tree", lambda *_: None)
    wheel = commands["Build"](setuptools.Distribution())
    wheel.build_lib, wheel.editable_mode = str(tmp_path / "wheel"), False
    wheel.run()
    commands["Archive"](setuptools.Distribution()).make_release_tree(str(tmp_path / "archive"), [])
    for package in (tmp_path / "wheel" / "warpgrad", tmp_path / "archive" / "src" / "warpgrad"):
        assert (package / "commit.txt").read_text() == f"{head}\n"
        assert commit(package) == head
    wheel.build_lib, wheel.editable_mode = str(tmp_path / "editable"), True
    wheel.run()
    assert not (tmp_path / "editable").exists()


def ours(root: Path) -> Path:
    """The package in a checkout that looks like this project's."""
    package = root / "src" / "warpgrad"
    if not package.exists():
        package.mkdir(parents=True)
        (root / "pyproject.toml").write_text('[project]\nname = "warpgrad"\n')
        (package / "version.py").write_text((Path(wg.__file__).parent / "version.py").read_text())
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=root, check=True)
    return package


def test_a_repository_in_a_loop_of_links_is_none(tmp_path):
    package = ours(tmp_path / "ours")
    subprocess.run(["rm", "-r", tmp_path / "ours" / ".git"], check=True)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "ours" / ".git").write_text(f"gitdir: {tmp_path / 'loop'}\n")
    assert commit(package) is None


def test_our_own_checkout_is_read_without_running_git(tmp_path, monkeypatch):
    root = tmp_path / "ours"
    (root / "src" / "warpgrad").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "warpgrad"\n')
    (root / "src" / "warpgrad" / "a.py").write_text("one\n")

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=b"]
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD").strip()
    monkeypatch.setattr(subprocess, "Popen", None)
    assert commit(root / "src" / "warpgrad") == head
    (root / "src" / "warpgrad" / "a.py").write_text("two\n")
    assert commit(root / "src" / "warpgrad") == f"{head}+changes"
    monkeypatch.undo()
    git("add", ".")
    assert commit(root / "src" / "warpgrad") == f"{head}+changes"
    git("commit", "-q", "-m", "two")
    git("pack-refs", "--all")
    git("repack", "-a", "-d", "-q")
    assert commit(root / "src" / "warpgrad") == git("rev-parse", "HEAD").strip()

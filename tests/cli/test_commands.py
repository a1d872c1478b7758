"""The command line as a person uses it: in processes of its own, but for the many ways to be refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warpgrad.cli.main import main
from warpgrad.cli.report import SHIPPED
from warpgrad.io import SEAL
from warpgrad.zoo import restore_run

TINY = ["--meta-steps", "2", "--steps", "3", "--starts", "2", "--test-surfaces", "3", "--test-starts", "2"]


def warpgrad(*words: str, cwd: Path | None = None, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warpgrad", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished tiny run."""
    path = tmp_path_factory.mktemp("cli") / "run"
    done = warpgrad("run", "synthetic", *TINY, "--out", str(path), "--quiet")
    assert done.returncode == 0, done.stderr
    return path


def test_help_and_list_name_everything():
    assert "warpgrad run synthetic" in warpgrad().stdout
    listed = warpgrad("list")
    assert listed.returncode == 0
    for word in ("synthetic", "warpgrad", "paper", "small", "synthetic-sweep"):
        assert word in listed.stdout
    options = warpgrad("run", "synthetic", "--help").stdout
    assert "--meta-lr" in options
    assert "--fresh" in options
    assert warpgrad("--version").stdout.strip()


def test_a_run_directory_holds_the_contract(run):
    config = json.loads((run / "config.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert (config["experiment"], config["preset"], config["meta_steps"]) == ("synthetic", "paper", 2)
    for name in ("experiment", "method", "preset", "seed", "steps", "metrics", "wall_seconds", "versions", "hardware"):
        assert name in summary
    assert summary["command"].startswith("warpgrad run synthetic --preset paper --meta-steps 2")
    assert summary["steps"] == len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert list((run / "checkpoints").glob("step-00000002.safetensors"))


def test_the_same_command_again_does_nothing_anew(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    again = warpgrad("run", "synthetic", *TINY, "--out", str(run), "--quiet")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")} == before


def test_the_recorded_command_repeats_the_run(run, tmp_path):
    words = json.loads((run / "summary.json").read_text())["command"].split()[1:]
    done = warpgrad(*words, "--out", str(tmp_path / "again"), "--quiet")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((path / "summary.json").read_text())["metrics"] for path in (run, tmp_path / "again"))
    assert first == second


def test_evaluate_with_and_without_other_test_settings(run, tmp_path):
    plain = warpgrad("evaluate", str(run))
    assert plain.returncode == 0, plain.stderr
    kept = json.loads((run / "evaluation.json").read_text())
    other = tmp_path / "other.json"
    changed = warpgrad("evaluate", str(run), "--test-surfaces", "2", "--out", str(other))
    assert changed.returncode == 0, changed.stderr
    assert len(json.loads(other.read_text())["final"]["plain"]) == 2
    assert json.loads((run / "evaluation.json").read_text())["final"] == kept["final"]


def test_report_writes_a_page(run, tmp_path):
    page = tmp_path / "page.html"
    done = warpgrad("report", str(run), "--out", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    for words in ("What is geometry, and what is not", "Surfaces and descents", "warpgrad run synthetic", "indicative"):
        assert words in text


def test_the_report_of_a_run_renders_in_a_browser(run, tmp_path, browser):
    page = tmp_path / "page.html"
    assert warpgrad("report", str(run), "--out", str(page)).returncode == 0
    with browser.page(page) as visit:
        visit.wait("document.documentElement.dataset.ready === 'true'")
        assert visit.console() == []
        assert visit.requests() == []
        assert visit.value("document.querySelectorAll('img').length") >= 3
        assert visit.value("document.querySelectorAll('figure.chart').length") >= 1


def test_a_watched_run_is_shown_as_far_as_it_has_got_and_then_whole(run, tmp_path):
    """The copy has no summary, as a run that goes on; it gets one while it is watched."""
    going, page = tmp_path / "going", tmp_path / "page.html"
    shutil.copytree(run, going)
    summary = (going / "summary.json").read_bytes()
    (going / "summary.json").unlink()
    words = [sys.executable, "-m", "warpgrad", "report", str(going), "--watch", "--every", "0.2", "--out", str(page)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout.readline() == f"{page}: 1 of 1 run still in progress\n"
        assert "Still running: 2 of 2 meta-steps so far." in page.read_text()
        (going / "summary.json").write_bytes(summary)
        assert watching.stdout.readline() == f"{page}: 1 run finished\n"
        assert watching.wait(60) == 0
    assert "What is geometry, and what is not" in page.read_text()


def test_watching_ends_with_one_sentence_on_ctrl_c(run, tmp_path):
    going = tmp_path / "going"
    shutil.copytree(run, going)
    (going / "summary.json").unlink()
    words = [sys.executable, "-m", "warpgrad", "report", str(going), "--watch", "--out", str(tmp_path / "page.html")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert len(said.splitlines()) == 1


def test_the_shipped_run_is_taken_up_where_it_stopped(tmp_path):
    """As the demonstration does, with fewer meta-steps and surfaces."""
    restore_run(SHIPPED, tmp_path / "run")
    words = ["--preset", "long", "--meta-steps", "1001", "--out", str(tmp_path / "run"), "--quiet"]
    done = warpgrad("run", "synthetic", *words)
    assert done.returncode == 0, done.stderr
    assert "1001 meta-steps" in done.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1001
    assert json.loads(lines[-1])["meta_loss"] < json.loads(lines[0])["meta_loss"]


def test_reproduce_runs_what_is_missing_and_builds_the_table(tmp_path):
    root = tmp_path / "table"
    words = ["reproduce", "synthetic", "--preset", "small", "--seeds", "1", "--workers", "2", "--out", str(root)]
    done = warpgrad(*words)
    assert done.returncode == 0, done.stderr
    assert "1 runs, 0 of them finished" in done.stderr
    assert "geometry, from x0" in done.stdout
    assert (root / "synthetic" / "index.html").exists()
    assert {path.name for path in (root / "synthetic" / "figures").iterdir()} >= {
        "surfaces-and-descents-1.png",
        "loss-against-step-1.png",
    }
    again = warpgrad(*words)
    assert "1 runs, 1 of them finished" in again.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fly"], "unrecognized options: fly; choose one of list, run, evaluate"),
        (["run"], "expected one of {synthetic, omniglot"),
        (["run", "chess"], "unrecognized options: chess; choose one of synthetic"),
        (["run", "synthetic", "--sed", "3"], "unrecognized options: --sed, 3 (did you mean --seed?)"),
        (["run", "synthetic", "--seed", "three"], "error parsing --seed"),
        (["run", "synthetic", "--form", "round"], "invalid choice 'round' for argument '--form'"),
        (["run", "synthetic", "--preset", "huge"], "no preset 'huge'"),
        (["run", "synthetic", "--method", "maml"], "no method 'maml'"),
        (["run", "synthetic", "--steps", "0"], "steps=0: it must be at least 1"),
        (["run", "synthetic", "--threads", "0"], "threads=0"),
        (["run", "synthetic", "--device", "cuda"], "device 'cuda' is not available here; use --device cpu"),
        (["run", "synthetic", "--device", "teapot"], "device 'teapot' is not available here"),
        (["run", "synthetic", "--device", "teapot", "--estimate"], "device 'teapot' is not available here"),
        (["run", "synthetic", "--out", "/dev/null/run"], "cannot write /dev/null/run: Not a directory"),
        (["run", "continual", "--order", "0", "1"], "order=(0, 1) does not name each of 5 sub-tasks once"),
        (["run", "continual", "--decay", "2"], "decay=2.0: it must be at least 0 and at most 1"),
        (["evaluate"], "missing from warpgrad evaluate: RUN The run directory"),
        (["evaluate", "nowhere"], "config.json is missing: is nowhere a run directory?"),
        (["report", "nowhere"], "config.json is missing"),
        (["reproduce", "everything"], "there is no table 'everything'"),
        (["reproduce", "synthetic", "--seeds", "0"], "seeds=0"),
        (["reproduce", "synthetic", "--workers", "0"], "workers=0"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert_one_complaint(capfd.readouterr().err, sentence)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def assert_one_complaint(said: str, sentence: str) -> None:
    (complaint,) = [line for line in said.splitlines() if line.startswith("warpgrad: ")]
    assert sentence in complaint
    assert "Traceback" not in said


def test_a_process_leaves_with_the_code_and_the_sentence(tmp_path):
    done = warpgrad("run", "synthetic", "--steps", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert_one_complaint(done.stderr, "steps=0: it must be at least 1")


def test_corrupt_runs_are_named_and_nothing_is_lost(run, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (newest,) = (copy / "checkpoints").glob("step-00000002.safetensors")
    newest.write_bytes(newest.read_bytes()[:100])
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for words, sentence in [
        (["evaluate", str(copy)], "is damaged"),
        (["run", "synthetic", *TINY, "--out", str(copy)], "is damaged"),
        (["run", "synthetic", *TINY, "--seed", "1", "--out", str(copy)], "has seed = 0, not 1"),
    ]:
        done = warpgrad(*words)
        assert done.returncode == 2
        assert sentence in done.stderr
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "hidden": 31}))
    done = warpgrad("run", "synthetic", *TINY, "--out", str(copy))
    assert (done.returncode, "does not match its checksum" in done.stderr) == (2, True)
    del config[SEAL]
    (copy / "config.json").write_text(json.dumps({**config, "format": 99}))
    done = warpgrad("run", "synthetic", *TINY, "--out", str(copy))
    assert (done.returncode, "another version" in done.stderr) == (2, True)
    del config["hidden"]
    (copy / "config.json").write_text(json.dumps(config))
    done = warpgrad("evaluate", str(copy))
    assert (done.returncode, "setting 'hidden'" in done.stderr) == (2, True)


def test_a_full_disk_is_one_sentence(tmp_path):
    """A file-size limit stands in for a full disk: every larger write fails."""
    import resource

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = warpgrad("run", "synthetic", *TINY, "--out", str(tmp_path / "run"), "--quiet", preexec_fn=limit)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    after = warpgrad("run", "synthetic", *TINY, "--out", str(tmp_path / "run"), "--quiet")
    assert after.returncode == 0, after.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(tmp_path, number, code):
    run = tmp_path / "run"
    words = ["run", "synthetic", "--meta-steps", "100000", "--steps", "3", "--out", str(run), "--quiet"]
    job = subprocess.Popen([sys.executable, "-m", "warpgrad", *words], stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while time.monotonic() - began < 60:
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.02)
    job.send_signal(number)
    try:
        words_said = job.communicate(timeout=60)[1]
    finally:
        job.kill()
    assert job.returncode == code
    assert "Traceback" not in words_said
    if number == signal.SIGINT:
        assert "run the same command to resume" in words_said
    assert list((run / "checkpoints").glob("step-*.safetensors"))


def test_a_stopped_table_stops_its_workers_and_goes_on(tmp_path):
    root = tmp_path / "table"
    words = ["reproduce", "synthetic", "--seeds", "1", "--workers", "1", "--out", str(root)]
    job = subprocess.Popen([sys.executable, "-m", "warpgrad", *words], stderr=subprocess.PIPE, text=True)
    metrics = root / "paper-warpgrad-seed0" / "metrics.jsonl"
    began = time.monotonic()
    while time.monotonic() - began < 60 and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    try:
        words_said = job.communicate(timeout=60)[1]
    finally:
        job.kill()
    assert job.returncode == 130
    assert "run the same command to resume" in words_said
    assert list(metrics.parent.glob("checkpoints/step-*.safetensors"))
    saved = metrics.read_bytes()
    time.sleep(1)
    assert metrics.read_bytes() == saved, "the worker is still running"

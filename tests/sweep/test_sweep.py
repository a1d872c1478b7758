"""Sweeps: the record in Optuna, trials as processes, and the whole command, killed and taken up again.

Most tests use a stand-in for the run: a small program that writes what a run writes, so that a trial takes
milliseconds. The last two use real runs.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

optuna = pytest.importorskip("optuna", reason="needs Optuna: pip install 'warpgrad[sweep]'")

from optuna.trial import TrialState  # noqa: E402

from warpgrad.cli.main import dispatch, main  # noqa: E402
from warpgrad.errors import NonFiniteError, WarpgradError  # noqa: E402
from warpgrad.experiments.base import Execution  # noqa: E402
from warpgrad.experiments.multi_shot.experiment import MultiShot  # noqa: E402
from warpgrad.experiments.runner import execute, python_command  # noqa: E402
from warpgrad.experiments.search_space import Choices, FloatRange, IntRange  # noqa: E402
from warpgrad.experiments.settings_file import read_settings  # noqa: E402
from warpgrad.experiments.synthetic.experiment import Synthetic  # noqa: E402
from warpgrad.sweep.page import best_so_far, study_page  # noqa: E402
from warpgrad.sweep.results import Prune, Sweep, SweepPaths, best_settings, state_of  # noqa: E402
from warpgrad.sweep.study import open_study, sampler  # noqa: E402
from warpgrad.sweep.trials import Workers  # noqa: E402

TINY = ["--meta-steps", "2", "--steps", "3", "--starts", "2", "--test-surfaces", "3", "--test-starts", "2"]
SPACE = {
    "meta_lr": FloatRange(1e-4, 1e-1, log=True),
    "hidden": IntRange(2, 9),
    "form": Choices(("printed", "peaks")),
}

# arguments: directory, settings, what to do at the end
RUN = """
import json, math, os, signal, sys, time
directory, config, end = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
rate, steps = config["meta_lr"], config["meta_steps"]
def stop(number, frame):
    open(directory + "/stopped", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
os.makedirs(directory, exist_ok=True)
with open(directory + "/config.json", "w") as file:
    json.dump(config, file)
loss = abs(math.log10(rate) + 2)
with open(directory + "/metrics.jsonl", "w") as file:
    for step in range(steps):
        file.write(json.dumps({"step": step, "task_loss_last": loss + 1 / (step + 1)}) + chr(10))
if end.startswith("wait above") and loss > float(end.split()[-1]):
    time.sleep(600)
if end == "interrupt":
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
if end == "diverge":
    print("warpgrad: meta-step 3: the loss is nan.", file=sys.stderr)
    sys.exit(3)
if end == "break":
    print("warpgrad: the disk is full.", file=sys.stderr)
    sys.exit(2)
value = math.nan if end == "nan" else loss
with open(directory + "/summary.json", "w") as file:
    json.dump({"experiment": "synthetic", "metrics": {"loss/warp": value}, "wall_seconds": 1.5}, file)
"""


def stand_in(end="done"):
    def command(experiment, config, directory: Path) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", RUN, str(directory), json.dumps(vars(config)), end]

    return command


def planned(search="random", seed=0, space=SPACE, meta_steps=20) -> Sweep:
    config = Synthetic().config("small", seed=seed, split="validation", meta_steps=meta_steps)
    return Sweep(Synthetic(), config, space, search, "loss/warp", "minimise")


@contextmanager
def recording(root: Path, plan: Sweep, name="study", address=None):
    places = SweepPaths(root, name)
    with open_study(plan, places, address) as study:
        yield study, places


def complete(study, trial, value: float, seconds: float = 0.0) -> None:
    study.end(trial, TrialState.COMPLETE, value, seconds=seconds)


def drawn(root: Path, plan: Sweep, count: int, together: int = 1) -> list[dict]:
    """What `count` trials try, `together` of them at a time; each is valued by a function of what it tries."""
    tried = {}
    with recording(root, plan, address="sqlite:///:memory:") as (record, _):
        active = []
        while len(tried) < count:
            trial = record.next_trial(count)
            tried[trial.number] = record.chosen(trial)
            active.append(trial)
            if len(active) == together or len(tried) == count:
                for one in reversed(active):
                    chosen = tried[one.number]
                    complete(record, one, (math.log10(chosen["meta_lr"]) + 2) ** 2 + chosen["hidden"])
                active = []
        assert record.next_trial(count) is None
    return [tried[number] for number in sorted(tried)]


def states(root: Path, plan: Sweep) -> list[str]:
    with recording(root, plan) as (record, _):
        return [state_of(trial) for trial in record.trials()]


def test_a_list_is_chosen_kept_shown_and_run_as_it_was_declared(tmp_path):
    """Optuna keeps no lists: from the study, in another process too, they come back as the setting holds them."""
    experiment, widths = MultiShot(), ((4, 4), (8, 8, 16))
    config = experiment.config("small", method="leap", split="validation")
    space = {"widths": Choices(widths), "momentum": Choices((0.0, 0.9))}
    plan = Sweep(experiment, config, space, "random", "auc", "maximise")
    tried = []
    for _ in range(2):  # the second time on what the first has left
        with recording(tmp_path, plan) as (record, places):
            for _ in range(6):
                trial = record.next_trial(12)
                tried.append(record.chosen(trial))
                complete(record, trial, float(len(tried[-1]["widths"])))
            trials = record.trials()
    assert {chosen["widths"] for chosen in tried} == set(widths)
    assert [plan.chosen(trial) for trial in trials] == tried
    best = plan.ranked(trials)[0]
    assert plan.trial_config(plan.chosen(best)).widths == (8, 8, 16)
    words = python_command(experiment, plan.trial_config(plan.chosen(best)), tmp_path / "trial")
    assert words[words.index("--widths") + 1 :][:3] == ["8", "8", "16"]
    places.best.write_text(json.dumps(best_settings(plan, best)))
    assert read_settings(places.best, experiment)["widths"] == (8, 8, 16)
    page = study_page(plan, trials, places, "warpgrad sweep multi-shot").write(places.page).read_text()
    assert "8, 8, 16" in page


def test_random_search_is_a_function_of_the_seed_and_the_trial(tmp_path):
    first = drawn(tmp_path / "a", planned(), 6)
    assert drawn(tmp_path / "b", planned(), 6, together=3) == first
    assert drawn(tmp_path / "c", planned(seed=1), 6) != first
    assert len({chosen["meta_lr"] for chosen in first}) == 6
    for chosen in first:
        assert list(chosen) == list(SPACE)
        assert 1e-4 <= chosen["meta_lr"] <= 1e-1
        assert chosen["hidden"] in range(2, 10)
    # Settings of one trial have streams of their own: equal ranges do not give equal values.
    pair = {"meta_lr": FloatRange(0.1, 1.0), "lr": FloatRange(0.1, 1.0), "hidden": IntRange(2, 9)}
    assert all(chosen["meta_lr"] != chosen["lr"] for chosen in drawn(tmp_path / "d", planned(space=pair), 3))


def test_logarithmic_ranges_favour_no_decade():
    chosen = optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)
    samplers = [sampler(planned(), number, "meta_lr") for number in range(900)]
    rates = [one.sample_independent(None, None, "meta_lr", chosen) for one in samplers]
    by_decade = [sum(10**low <= rate < 10 ** (low + 1) for rate in rates) for low in (-4, -3, -2)]
    # 900 draws of probability 1/3: 300 expected, standard deviation 14.1; four of them on either side.
    assert all(abs(count - 300) < 57 for count in by_decade)


def test_tpe_repeats_itself_and_leaves_random_search_after_ten_trials(tmp_path):
    first = drawn(tmp_path / "a", planned("tpe"), 14)
    assert drawn(tmp_path / "b", planned("tpe"), 14) == first
    random = drawn(tmp_path / "c", planned(), 14)
    assert first[:10] == random[:10]
    assert all(one != other for one, other in zip(first[10:], random[10:], strict=True))


def test_a_trial_is_taken_up_when_its_owner_is_gone_and_not_before(tmp_path):
    plan = planned()
    expected = drawn(tmp_path / "whole", plan, 2)
    with recording(tmp_path, plan) as (record, _):
        trial = record.next_trial(5)
        assert record.chosen(trial) == expected[0]
        unnamed = record.next_trial(5)  # its owner is killed before it has drawn anything
        with recording(tmp_path, plan) as (other, _):
            assert other.next_trial(5).number == 2
    with recording(tmp_path, plan) as (record, _):
        assert [record.next_trial(5).number for _ in range(3)] == [0, 1, 2]
        assert record.next_trial(3) is None
        assert states(tmp_path, plan) == ["running"] * 3
    with recording(tmp_path, plan) as (record, _):
        chosen = [record.chosen(record.next_trial(2)) for _ in range(2)]
        assert chosen == expected
        assert unnamed.number == 1


def test_trials_of_another_machine_are_left_to_it_unless_told_otherwise(tmp_path):
    plan = planned()
    address = f"sqlite:///{tmp_path / 'shared.db'}"
    with recording(tmp_path / "there", plan, address=address) as (record, _):
        assert record.next_trial(1).number == 0
    with recording(tmp_path / "here", plan, address=address) as (record, _):
        assert record.next_trial(1) is None
        assert record.next_trial(1, take_over=True).number == 0
    with recording(tmp_path / "there", plan, address=address) as (record, _):
        assert record.next_trial(1) is None


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (planned("tpe"), "has sampler = 'random', not 'tpe'"),
        (planned(seed=1), "has seed = 0, not 1"),
        (planned(meta_steps=9), "has meta_steps = 20, not 9"),
        (planned(space={"meta_lr": FloatRange(0.1, 1)}), "study 'study' has form = None, not 'printed'"),
        (dataclasses.replace(planned(), metric="loss/gd"), "has metric = 'loss/warp', not 'loss/gd'"),
    ],
)
def test_a_study_goes_on_only_as_it_began(other, sentence, tmp_path):
    with recording(tmp_path, planned()):
        pass
    with pytest.raises(WarpgradError) as refused, recording(tmp_path, other):
        pass
    assert sentence in str(refused.value)
    assert "choose another --study" in str(refused.value)


def test_foreign_studies_and_bad_addresses_are_refused(tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    optuna.create_study(study_name="study", storage=storage).add_trial(optuna.create_trial(value=1.0))
    storage.remove_session()
    with pytest.raises(WarpgradError, match="was not made by 'warpgrad sweep'"), recording(tmp_path, planned()):
        pass
    for address in ("nonsense", "sqlite:////dev/null/x.db", "postgresql://me:secret@localhost:1/db"):
        with pytest.raises(WarpgradError, match="storage cannot be opened") as refused:
            recording(tmp_path, planned(), address=address).__enter__()
        assert "secret" not in str(refused.value)
    (tmp_path / "broken.db").write_bytes(b"no database" * 100)
    with pytest.raises(WarpgradError, match="storage cannot be opened"), recording(tmp_path, planned(), "broken"):
        pass


def worked(root, plan, total, *, end="done", workers=2, prune=None):
    said = []
    with recording(root, dataclasses.replace(plan, prune=prune)) as (record, places):
        Workers(record, say=said.append, command=stand_in(end)).run(total, workers)
        return record.trials(), places, said


def are(trials, state: str, count: int) -> bool:
    return [state_of(trial) for trial in trials] == [state] * count


def test_trials_run_to_the_asked_number_and_on(tmp_path):
    plan = planned()
    outcomes, places, said = worked(tmp_path, plan, 3)
    assert are(outcomes, "complete", 3)
    for outcome in outcomes:
        assert outcome.value == pytest.approx(abs(math.log10(outcome.params["meta_lr"]) + 2), rel=1e-12)
        assert outcome.user_attrs["seconds"] == 1.5
        assert places.trial(outcome.number).is_dir()
    assert len(said) == 3
    more, _, said = worked(tmp_path, plan, 4)
    assert (more[:3], len(more), len(said)) == (outcomes, 4, 1)
    same, _, said = worked(tmp_path, plan, 4)
    assert (same, said) == (more, [])


@pytest.mark.parametrize(("end", "words"), [("diverge", "meta-step 3: the loss is nan."), ("nan", "loss/warp is nan")])
def test_a_diverged_trial_counts_and_says_why(tmp_path, end, words):
    outcomes, _, said = worked(tmp_path, planned(), 2, end=end)
    found = [(state_of(trial), trial.user_attrs["error"], trial.value) for trial in outcomes]
    assert found == [("failed", words, None)] * 2
    assert said[0].endswith(f"failed: {words}")


def test_any_other_failure_stops_the_sweep_and_the_trial_is_taken_up_again(tmp_path):
    plan = planned()
    with pytest.raises(WarpgradError, match=r"trial-0000: the disk is full; fix that and repeat the command"):
        worked(tmp_path, plan, 2, end="break", workers=1)
    assert states(tmp_path, plan) == ["running"]
    outcomes, _, _ = worked(tmp_path, plan, 2)
    assert are(outcomes, "complete", 2)


def test_a_metric_that_is_not_measured_is_one_sentence(tmp_path):
    plan = dataclasses.replace(planned(), metric="accuracy", direction="maximise")
    with pytest.raises(WarpgradError, match=r"synthetic does not measure 'accuracy'.*of loss/warp"):
        worked(tmp_path, plan, 1)


def test_an_interrupt_stops_the_runs_and_the_sweep_goes_on_later(tmp_path):
    plan = planned()
    with pytest.raises(KeyboardInterrupt):
        worked(tmp_path, plan, 2, end="interrupt", workers=1)
    assert (tmp_path / "study" / "trial-0000" / "stopped").exists()
    outcomes, _, _ = worked(tmp_path, plan, 2)
    assert are(outcomes, "complete", 2)


def test_a_run_that_outlived_its_sweep_is_waited_for(tmp_path):
    """The lock on the trial's directory stands for the run that a killed sweep left."""
    plan = planned()
    directory = tmp_path / "study" / "trial-0000"
    directory.mkdir(parents=True)
    lock = (directory / ".lock").open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    timer = threading.Timer(1.0, lock.close)
    began = time.monotonic()
    timer.start()
    outcomes, _, _ = worked(tmp_path, plan, 1)
    assert time.monotonic() - began >= 1.0
    assert are(outcomes, "complete", 1)
    timer.join()


def test_pruned_trials_are_stopped_and_kept(tmp_path):
    """Stand-ins behind the median of the first three would not end by themselves."""
    plan = planned(seed=2, space={"meta_lr": FloatRange(1e-4, 1e-2, log=True)})
    before, places, _ = worked(tmp_path, plan, 3, prune=Prune(after=3), workers=1)
    median = statistics.median(outcome.value for outcome in before)
    after, _, said = worked(tmp_path, plan, 8, prune=Prune(after=3), end=f"wait above {median}", workers=1)
    assert are(after[:3], "complete", 3)
    pruned = [outcome for outcome in after[3:] if state_of(outcome) == "pruned"]
    assert pruned
    assert len(pruned) < 5
    complete: list[float] = []
    for outcome in after:
        loss = abs(math.log10(outcome.params["meta_lr"]) + 2)
        behind = len(complete) >= 3 and loss > statistics.median(complete)
        assert state_of(outcome) == ("pruned" if behind else "complete")
        assert behind or outcome.value == pytest.approx(loss, rel=1e-12)
        complete += [] if behind else [loss]
        assert (places.trial(outcome.number) / "metrics.jsonl").exists()
    assert sum("pruned after 4 meta-steps" in line for line in said) == len(pruned)
    stopped = [outcome for outcome in pruned if abs(math.log10(outcome.params["meta_lr"]) + 2) > median]
    assert stopped
    assert all((places.trial(outcome.number) / "stopped").exists() for outcome in stopped)


def test_a_diverging_run_has_an_exit_code_of_its_own(tmp_path, capsys):
    words = ["run", "synthetic", *TINY, "--lr", "1e30", "--out", str(tmp_path / "run"), "--quiet"]
    for given, code, said in ((words, 3, "meta-step 0"), (["run", "synthetic", "--steps", "0"], 2, "steps=0")):
        with pytest.raises(SystemExit) as stopped:
            main(given)
        assert stopped.value.code == code
        assert said in capsys.readouterr().err


def test_a_matrix_that_cannot_be_inverted_is_divergence(tmp_path, monkeypatch):
    def singular(self, config, execution):
        raise torch.linalg.LinAlgError("the matrix is singular.")

    monkeypatch.setattr(Synthetic, "train", singular)
    with pytest.raises(NonFiniteError, match="the matrix is singular; take smaller steps"):
        execute(Synthetic(), Synthetic().config("small"), Execution(tmp_path))


def test_the_page_tells_the_best_and_the_failed(tmp_path):
    plan = planned()
    with recording(tmp_path, plan) as (record, places):
        for value in (3.0, None, 2.0, None, 4.0):
            trial = record.next_trial(9)
            record.chosen(trial)
            if value is None:
                record.end(trial, TrialState.FAIL, error="the loss is nan & <void>")
            else:
                complete(record, trial, value, 12.0)
        outcomes = record.trials()
    best = best_so_far(plan, [*outcomes[1:], outcomes[0]]).tolist()
    assert math.isnan(best[0])
    assert best[1:] == [2.0] * 4
    turned = dataclasses.replace(plan, direction="maximise")
    assert best_so_far(turned, outcomes).tolist() == [3.0, 3.0, 3.0, 3.0, 4.0]
    page = study_page(plan, outcomes, places, "warpgrad sweep synthetic --trials 5")
    text = page.html()
    assert text.count('<figure class="chart">') == len(SPACE) + 1
    for words in ("Best loss/warp", "trial-0002, validation split", "3 complete, 2 failed", "nan &amp; &lt;void&gt;"):
        assert words in text
    assert "warpgrad sweep synthetic --trials 5" in text
    # The picture comes before the command, and a trial has one value, of which there is no mean.
    assert text.index('<figure class="chart">') < text.index("warpgrad run synthetic --config")
    assert "the best mean" not in text
    assert study_page(plan, outcomes, places, "warpgrad sweep synthetic --trials 5").html() == text


def command(root: Path, *words: str) -> list[str]:
    return ["synthetic", *TINY, "--seed", "3", "--study", "s", "--out", str(root), *words]


def test_a_sweep_of_real_runs_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dispatch(["sweep", *command(tmp_path, "--trials", "2", "--workers", "2")])
    said = capsys.readouterr()
    assert "0 of 2 trials made" in said.err
    assert "trial-0001" in said.out
    best = json.loads((tmp_path / "s" / "best.json").read_text())
    runs = [tmp_path / "s" / name for name in ("trial-0000", "trial-0001")]
    configs = [json.loads((run / "config.json").read_text()) for run in runs]
    values = [json.loads((run / "summary.json").read_text())["metrics"]["loss/warp"] for run in runs]
    assert [config["split"] for config in configs] == ["validation"] * 2
    assert best["meta_lr"] == configs[values.index(min(values))]["meta_lr"]
    assert not {"split", "seed"} & set(best)
    best_file, out = str(tmp_path / "s" / "best.json"), str(tmp_path / "again")
    dispatch(["run", "synthetic", "--config", best_file, "--out", out, "--quiet"])
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (again["split"], again["meta_lr"]) == ("test", best["meta_lr"])
    assert json.loads((tmp_path / "again" / "summary.json").read_text())["steps"] > 0
    capsys.readouterr()
    assert "Best so far" in (tmp_path / "s" / "index.html").read_text()
    kept = {path: path.stat().st_mtime_ns for run in runs for path in run.rglob("*")}
    dispatch(["sweep", *command(tmp_path, "--trials", "2")])
    assert "2 of 2 trials made" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for run in runs for path in run.rglob("*")} == kept
    assert not list((tmp_path / "s").glob(".trial-*"))


def test_a_killed_sweep_is_taken_up_and_ends_as_if_it_had_not_been(tmp_path):
    """SIGKILL of the sweep while its first trial runs; that run lives on, and is not started twice."""
    words = [sys.executable, "-m", "warpgrad", "sweep", *command(tmp_path, "--trials", "1", "--meta-steps", "300")]
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "s" / "trial-0000" / "metrics.jsonl"
    try:
        began = time.monotonic()
        while time.monotonic() - began < 120 and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
    finally:
        job.kill()
        job.wait()
    assert not (metrics.parent / "summary.json").exists()
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "1 of 1 trials made" in again.stderr
    assert "1 complete" in again.stdout
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(range(300))
    summary = json.loads((metrics.parent / "summary.json").read_text())
    whole = tmp_path / "whole"
    with pytest.raises(SystemExit) as stopped:
        main([*summary["command"].split()[1:], "--out", str(whole), "--quiet"])
    assert stopped.value.code == 0
    assert json.loads((whole / "summary.json").read_text())["metrics"] == summary["metrics"]

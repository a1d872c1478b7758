"""Pretrained warps: what comes with the package is what its records say, and an entry is made from a run or refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import warpgrad as wg
from tests.support import ROOT
from tests.support.experiment_runs import group_of
from tests.support.omniglot_runs import EXPERIMENT, store, tiny  # noqa: F401 - fixtures
from warpgrad.data.prepared import prepared
from warpgrad.errors import WarpgradError
from warpgrad.experiments import find_builder, find_experiment, runner, stored_config
from warpgrad.experiments.base import Execution, Results, Row, RunTable
from warpgrad.experiments.omniglot.evaluation import evaluate_on_alphabets
from warpgrad.experiments.omniglot.methods import open_data
from warpgrad.experiments.records import read_record, write_record
from warpgrad.experiments.synthetic.evaluation import Test
from warpgrad.io import read_object, write_json
from warpgrad.training.resources import hardware
from warpgrad.training.run_directory import LOCK, newest_checkpoint, reserved
from warpgrad.training.saving import load as load_method
from warpgrad.zoo.__main__ import LARGEST, main, make_entry

SHIPPED = wg.zoo.names()
CLEAN = "0123456789abcdef"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_card_of_an_entry_says_what_is_on_record(name):
    card = wg.zoo.card(name)
    settings = {part: value for part, value in card.settings.items() if part != "format"}
    run, evaluation = read_record(ROOT / "results" / card.record["file"]).find(settings)
    assert card.numbers == run.summary["metrics"]
    assert card.record["commit"] == run.summary["commit"]
    assert (card.seed, card.meta_steps, card.command) == tuple(
        run.summary[part] for part in ("seed", "steps", "command")
    )
    assert card.data.get("sha256") == evaluation.get("data_sha256")
    assert len(card.commit) == 40
    assert card.processor_seconds > 0
    assert (wg.zoo.ENTRIES / name / "weights.safetensors").stat().st_size <= LARGEST


def test_the_warp_of_the_surfaces_is_the_one_on_record():
    """The record holds Ω itself; and descents through it end where the record says."""
    card, method = wg.zoo.card("synthetic-long"), wg.zoo.load("synthetic-long")
    settings = {part: value for part, value in card.settings.items() if part != "format"}
    _, evaluation = read_record(ROOT / "results" / card.record["file"]).find(settings)
    for name, value in method.learner.phi.items():
        recorded = torch.tensor(evaluation["omega"][name.removeprefix("omega.")])
        torch.testing.assert_close(value.detach(), recorded, rtol=1e-6, atol=1e-8)
    _, config = stored_config(card.settings, Path("card.json"))
    result = Test(config).result(method.learner.module.get_submodule("omega"))
    check_numbers(result["metrics"], card)


def check_numbers(found: Mapping[str, float], card: wg.zoo.Card) -> None:
    """To the last digit on the kind of processor that the card names. On others the last digits of a step differ, and a
    descent of hundreds of steps over bent ground magnifies that; the mean over tasks stays within a few per cent."""
    assert found.keys() == card.numbers.keys()
    if hardware()["cpu"] == card.hardware["cpu"]:
        assert {name: float(f"{value:.7g}") for name, value in found.items()} == card.numbers
    assert found == pytest.approx(card.numbers, rel=0.03)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("omniglot")])
def test_a_pretrained_network_of_omniglot_gives_the_numbers_on_its_card(name):
    if prepared("omniglot") is None:
        pytest.skip("needs Omniglot: warpgrad data prepare omniglot")
    card, method = wg.zoo.card(name), wg.zoo.load(name)
    _, config = stored_config(card.settings, Path("card.json"))
    found = evaluate_on_alphabets(config, method.learner, method.rule, open_data(config.data))["metrics"]
    check_numbers(found, card)


@pytest.mark.parametrize("name", SHIPPED)
def test_an_entry_is_loaded_with_no_extra_installed(name):
    program = (
        "import sys\n"
        "for extra in ('PIL', 'jinja2', 'scipy', 'matplotlib', 'bokeh', 'tyro', 'rich', 'gymnasium', 'optuna'):\n"
        "    sys.modules[extra] = None\n"
        "import warpgrad as wg\n"
        "assert 'torch' not in sys.modules and 'warpgrad.zoo' not in sys.modules\n"
        f"print(wg.zoo.load({name!r}).learner)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Learner" in done.stdout


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory) -> Path:  # noqa: F811
    """A tiny run of Warp-Leap, as if from a clean checkout."""
    path = tmp_path_factory.mktemp("runs") / "warp-leap"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "commit", lambda: CLEAN)
        runner.execute(EXPERIMENT, tiny(method="warp-leap"), Execution(path, progress=False))
    return path


@pytest.fixture(scope="module")
def record(run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("results") / "tiny.json"
    table = RunTable("tiny", "Tiny", "omniglot", (Row("Warp-Leap"),), seeds=1, preset="small")
    write_record(path, table, "small", Results([group_of("Warp-Leap", [run])]))
    return path


@pytest.fixture
def entries(run, record, tmp_path) -> Path:
    main([str(run), "--name", "tiny", "--record", str(record), "--out", str(tmp_path / "entries")])
    return tmp_path / "entries"


def test_an_entry_made_from_a_run_and_its_record_gives_the_method_back(run, entries, capsys):
    assert wg.zoo.names(entries) == ["tiny"]
    card, method = wg.zoo.card("tiny", entries), wg.zoo.load("tiny", folder=entries)
    _, config = stored_config(read_object(run / "config.json"), run)
    expected = load_method(newest_checkpoint(run), find_builder("omniglot")(config).learner)
    for ours, theirs in ((method.learner.phi, expected.learner.phi), (method.learner.theta0, expected.learner.theta0)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    parts = [type(part).__name__ for part in (method.rule, method.objective, method.initialiser)]
    assert parts == ["SGD", "Exact", "Leap"]
    assert method.rule.lr == config.inner_lr
    assert (card.commit, card.record["row"], card.meta_steps) == (CLEAN, "Warp-Leap, seed 0", 1)
    assert card.data["licence"]
    found = find_experiment("omniglot").evaluate(config, run)
    assert {name: float(f"{value:.7g}") for name, value in found["metrics"].items()} == card.numbers
    x, y = torch.rand(8, 1, 28, 28), torch.arange(8) % 6
    task = wg.SupervisedTask(x, y, torch.nn.functional.cross_entropy)
    _, curve = wg.adapt(method.learner, task, rule=method.rule, steps=5, curve=True)
    assert curve.losses[-1] < curve.losses[0]


def test_a_card_is_shown_as_a_page(entries):
    text = str(wg.zoo.card("tiny", entries))
    for words in ("# tiny", "warpgrad run omniglot --preset small", CLEAN, "| accuracy_8 |", "| filters | 4 |"):
        assert words in text


def test_a_run_is_carried_on_from_an_entry_that_keeps_its_metrics(run, record, entries, tmp_path):
    with pytest.raises(WarpgradError, match="tiny contains only weights"):
        wg.zoo.restore_run("tiny", tmp_path / "again", entries)
    make_entry(run, "whole", record, entries, with_metrics=True)
    wg.zoo.restore_run("whole", tmp_path / "again", entries)
    assert (tmp_path / "again" / "config.json").read_bytes() == (run / "config.json").read_bytes()
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert newest_checkpoint(tmp_path / "again").read_bytes() == newest_checkpoint(run).read_bytes()
    (tmp_path / "again" / "metrics.jsonl").write_text("of a run that has gone on")
    wg.zoo.restore_run("whole", tmp_path / "again", entries)
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == "of a run that has gone on"


def test_no_entry_is_laid_out_where_another_process_works_or_keeps_files(tmp_path):
    with reserved(tmp_path / "run"), pytest.raises(WarpgradError, match="another process is running"):
        wg.zoo.restore_run("synthetic-long", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").write_text("x")
    with pytest.raises(WarpgradError, match="not a run directory but contains files, such as to-mother"):
        wg.zoo.restore_run("synthetic-long", tmp_path / "letters")
    wg.zoo.restore_run("synthetic-long", tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run").exists()


def test_weights_that_the_card_does_not_speak_of_are_refused(run, entries):
    shutil.copy(newest_checkpoint(run), entries / "tiny" / "weights.safetensors")
    with pytest.raises(WarpgradError, match="is not the file that its card describes"):
        wg.zoo.load("tiny", entries)


def test_a_card_that_was_changed_is_refused(entries):
    path = entries / "tiny" / "card.json"
    path.write_text(path.read_text().replace('"accuracy": ', '"accuracy": 1'))
    with pytest.raises(WarpgradError, match="is damaged"):
        wg.zoo.card("tiny", entries)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"summary": {"commit": f"{CLEAN}+changes"}}, "was made from a source tree with uncommitted changes"),
        ({"summary": {"metrics": {"accuracy": 99.0}}}, "accuracy is 99.0 in this run and"),
        ({"config": {"meta_steps": 99}}, "has no run with the settings of this run"),
        ({"config": {"seed": 1}}, "belongs to another run"),
        ({"config": {"experiment": None}}, "is not a run of an experiment"),
        ({"config": {"experiment": "few-shot"}}, "does not match this version of few-shot"),
    ],
)
def test_a_run_that_nobody_could_make_again_is_refused(run, record, tmp_path, capsys, change, sentence):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    for name, values in change.items():
        path = copied / f"{name}.json"
        write_json(path, {**read_object(path), **values}, seal=True)
    with pytest.raises(SystemExit):
        main([str(copied), "--name", "tiny", "--record", str(record), "--out", str(tmp_path / "entries")])
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "entries").exists()


@pytest.mark.parametrize(
    ("name", "folder", "sentence"),
    [
        ("everything", None, "there is no pretrained warp 'everything'; choose one of .*synthetic-long"),
        ("../secrets", None, "cannot be used as a folder name"),
        (7, None, "name"),
        ("tiny", "nowhere", "there is no folder nowhere"),
    ],
)
def test_what_is_not_there_is_refused_in_one_sentence(name, folder, sentence):
    with pytest.raises(WarpgradError, match=sentence):
        wg.zoo.load(name, folder)

"""Whole files in the wrong place: exchanged between runs, replaced by other things, data under another's name."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

import warpgrad as wg
from tests.data.tasks.test_alphabets import tiny_store
from tests.faults.test_faults import TINY, copied, says
from tests.support.omniglot_runs import TINY as OMNIGLOT
from tests.support.text_encoder import save_tiny_encoder, sentences, write_csv
from tests.support.training_job import train
from warpgrad.cli.main import main
from warpgrad.errors import WarpgradError
from warpgrad.experiments.runner import option
from warpgrad.io import read_object, write_json
from warpgrad.training import checkpoint
from warpgrad.training.run_directory import saved_checkpoints


def run_words(run: Path, seed: int, *more: str) -> list[str]:
    return ["run", "synthetic", "--out", str(run), *TINY, "--seed", str(seed), *more]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """Two runs that differ in nothing but the seed."""
    runs = tuple(tmp_path_factory.mktemp("pair") / f"seed{seed}" for seed in range(2))
    for seed, run in enumerate(runs):
        with pytest.raises(SystemExit, match="0"):
            main(run_words(run, seed))
    return runs


def swapped(pair: tuple[Path, Path], to: Path, *names: str) -> Path:
    """The first run with some files of the second."""
    run = copied(pair[0], to)
    for name in names:
        (run / name).write_bytes((pair[1] / name).read_bytes())
    return run


NEWEST = "checkpoints/step-00000002.safetensors"
OLDER = "checkpoints/step-00000001.safetensors"


@pytest.mark.parametrize(
    "names", [(NEWEST,), (NEWEST, "metrics.jsonl"), (NEWEST, OLDER, "metrics.jsonl"), ("config.json",)]
)
def test_a_checkpoint_of_another_run_is_neither_tested_nor_gone_on_with(pair, tmp_path, capsys, names):
    names = tuple(name for name in names if (pair[1] / name).exists())
    run = swapped(pair, tmp_path, *names)
    for words in (["evaluate", str(run)], ["evaluate", str(run), "--test-surfaces", "3"], ["verify", str(run)]):
        code, said = says(words, capsys)
        assert (code, "belongs to another run" in said, said.count("\n")) == (2, True, 1), words
    assert says(run_words(run, 0, "--meta-steps", "3"), capsys)[0] == 2
    learner = wg.Learner(torch.nn.Linear(1, 1), warp=())
    with pytest.raises(wg.WarpgradError, match="belongs to another run"):
        wg.load_run(run, learner)


@pytest.mark.parametrize("name", ["summary.json", "evaluation.json"])
def test_results_of_another_run_are_on_no_page(pair, tmp_path, capsys, name):
    run = swapped(pair, tmp_path, name)
    for words in (["report", str(run), "--out", str(tmp_path / "page.html")], ["verify", str(run)]):
        code, said = says(words, capsys)
        assert (code, f"{name} belongs to another run" in said) == (2, True)
    assert not (tmp_path / "page.html").exists()
    assert says(run_words(run, 0), capsys)[0] == 0  # made again
    numbers = [json.loads((one / name).read_bytes())["metrics"] for one in (run, *pair)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_no_page_mixes_results_of_two_lengths(pair, tmp_path, capsys):
    run = copied(pair[0], tmp_path)
    evaluation = read_object(run / "evaluation.json")
    write_json(run / "evaluation.json", {**evaluation, "after_meta_steps": 1}, seal=True)
    code, said = says(["report", str(run), "--out", str(tmp_path / "page.html")], capsys)
    assert (code, "a summary after 2 meta-steps but an evaluation after 1" in said) == (2, True)


def test_runs_of_an_earlier_version_say_not_whose_they_are_and_go_on(pair, tmp_path, capsys):
    run = copied(pair[0], tmp_path)
    for name in ("summary.json", "evaluation.json"):
        value = read_object(run / name)
        del value["run"]
        write_json(run / name, value, seal=True)
    for path in saved_checkpoints(run):
        state = checkpoint.read_checkpoint(path)
        del state["run"]
        checkpoint.write_checkpoint(path, state)
    for words in (["verify", str(run)], ["evaluate", str(run)], run_words(run, 0, "--meta-steps", "3")):
        assert says(words, capsys)[0] == 0
    assert "run" in read_object(run / "summary.json")


def omniglot_words(data: Path, run: Path) -> list[str]:
    settings = {**OMNIGLOT, "data": str(data)}
    return ["run", "omniglot", *(word for name, value in settings.items() for word in option(name, value)),
            "--out", str(run), "--quiet"]  # fmt: skip


def test_a_run_knows_its_data_by_their_content(tmp_path, capsys):
    """Another data set under the same name is whole by itself, and still not the one."""
    data, run = tiny_store(tmp_path / "store", alphabets=6).path, tmp_path / "run"
    words = omniglot_words(data, run)
    assert says(words, capsys)[0] == 0
    kept = read_object(run / "config.json")
    shutil.rmtree(data)
    other = tiny_store(tmp_path / "other", alphabets=7).path
    other.rename(data)
    summary = (run / "summary.json").read_bytes()
    for again in (words, [*words, "--meta-steps", "3"], ["evaluate", str(run)], ["evaluate", str(run), "--seed", "1"]):
        code, said = says(again, capsys)
        assert (code, "was made with other content of 'data' (SHA-256" in said) == (2, True), again
        assert said.count("\n") == 1
    assert (run / "summary.json").read_bytes() == summary
    # Under a name of its own it is what is asked for; --fresh begins a run of its own.
    named = shutil.copytree(data, tmp_path / "named")
    assert says(["evaluate", str(run), "--data", str(named)], capsys)[0] == 0
    assert says([*words, "--fresh"], capsys)[0] == 0
    assert read_object(run / "config.json")["data_sha256"] != kept["data_sha256"]


def test_a_run_of_an_earlier_version_learns_what_it_reads(tmp_path, capsys):
    data, run = tiny_store(tmp_path / "store", alphabets=6).path, tmp_path / "run"
    words = omniglot_words(data, run)
    assert says(words, capsys)[0] == 0
    kept = read_object(run / "config.json")
    write_json(run / "config.json", {name: value for name, value in kept.items() if name != "data_sha256"}, seal=True)
    for path in saved_checkpoints(run):
        state = checkpoint.read_checkpoint(path)
        checkpoint.write_checkpoint(path, {name: value for name, value in state.items() if name != "run"})
    assert says(["evaluate", str(run)], capsys)[0] == 0
    assert says([*words, "--meta-steps", "3"], capsys)[0] == 0
    assert read_object(run / "config.json")["data_sha256"] == kept["data_sha256"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", "checkpoints", "figures"])
def test_a_fresh_start_clears_whatever_is_in_the_place_of_a_file(tmp_path, kind, name):
    import socket

    train(str(tmp_path / "run"), 1)
    place = tmp_path / "run" / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(place))
    train(str(tmp_path / "run"), 1, fresh=True)
    assert saved_checkpoints(tmp_path / "run")


def test_an_encoder_that_was_replaced_is_another(tmp_path, capsys):
    from tests.faults.crashes import TEXT

    source = write_csv(tmp_path / "own.csv", sentences(12, 9))
    assert says(["data", "prepare", "text", "--source", str(source), "--out", str(tmp_path / "data")], capsys)[0] == 0
    save_tiny_encoder(tmp_path / "encoder")
    words = ["run", "text-intents", "--method", "warp-maml", *TEXT, "--data", str(tmp_path / "data"), "--encoder",
             str(tmp_path / "encoder"), "--out", str(tmp_path / "run"), "--quiet"]  # fmt: skip
    assert says(words, capsys)[0] == 0
    weights = tmp_path / "encoder" / "model.safetensors"
    import safetensors.torch

    changed = {name: value * 1.01 for name, value in safetensors.torch.load_file(weights).items()}
    safetensors.torch.save_file(changed, weights, {"format": "pt"})
    adapting = ["adapt", str(tmp_path / "run"), "--data", str(source), "--out", str(tmp_path / "model")]
    for again in (words, ["evaluate", str(tmp_path / "run")], adapting):
        code, said = says(again, capsys)
        assert (code, "was made with other content of 'encoder'" in said) == (2, True), again


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
def test_a_pipe_a_socket_and_a_device_are_never_replaced_by_a_file(tmp_path, kind):
    if kind == stat.S_IFCHR and os.geteuid() != 0:
        pytest.skip("only root can make a device, or replace one")
    place = tmp_path / "place"
    os.mknod(place, 0o666 | kind, os.makedev(1, 3))
    with pytest.raises(WarpgradError, match="it is not a regular file"):
        write_json(place, {"a": 1}, seal=True)
    assert stat.S_IFMT(place.lstat().st_mode) == kind


def test_a_link_to_a_pipe_or_to_what_a_process_has_open_is_never_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", Path("/dev/null"), Path("/proc/self/fd/1")):
        place = tmp_path / target.name
        if target != place:
            place.symlink_to(target)
        with pytest.raises(WarpgradError, match="it is not a regular file"):
            write_json(place, {"a": 1}, seal=True)
        assert target == place or place.readlink() == target
    (tmp_path / "nowhere").symlink_to("missing")
    write_json(tmp_path / "nowhere", {"a": 1}, seal=True)
    assert read_object(tmp_path / "nowhere") == {"a": 1}


def test_what_cannot_be_removed_of_other_commands_does_not_block_a_run(pair, tmp_path):
    run = copied(pair[0], tmp_path)
    (run / ".partial-model").mkdir()  # of a killed `warpgrad adapt --out RUN/model`
    (run / ".partial-0-config.json").symlink_to("config.json")
    with pytest.raises(SystemExit, match="0"):
        main(run_words(run, 0, "--meta-steps", "3"))
    assert (run / ".partial-model").is_dir()

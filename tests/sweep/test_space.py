"""What a sweep chooses from, settings in files, and the plain results of a sweep. None of it needs Optuna."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types

import pytest

from warpgrad.cli.main import dispatch
from warpgrad.errors import WarpgradError
from warpgrad.experiments import EXPERIMENTS
from warpgrad.experiments.continual.experiment import ContinualLearning
from warpgrad.experiments.omniglot.experiment import Omniglot
from warpgrad.experiments.search_space import Choices, FloatRange, IntRange
from warpgrad.experiments.settings_file import read_settings
from warpgrad.experiments.synthetic.experiment import Synthetic
from warpgrad.lazy import naming_extras
from warpgrad.sweep.results import Sweep, best_settings, direction_of, lines, summary, without_address
from warpgrad.sweep.space import read_space, space_to_json, sweep_space, validation_config

SWEPT = ("synthetic", "omniglot", "continual", "few-shot", "multi-shot")
DECLARING = [(name, method) for name in SWEPT for method in EXPERIMENTS[name].methods]


def written(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize(("name", "method"), DECLARING)
def test_every_method_has_a_space_that_its_experiment_accepts(name, method):
    experiment = EXPERIMENTS[name]
    for preset in experiment.presets:
        config = validation_config(experiment, experiment.config(preset, method=method))
        assert config.split == "validation"
        space = sweep_space(experiment, config, set())
        settings = {field.name for field in dataclasses.fields(config)}
        assert space
        assert set(space) <= settings
        direction_of(experiment.sweep_metric)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("warp-leap", {"inner_lr", "momentum", "filters", "theta0_lr", "meta_lr"}),
        ("leap", {"inner_lr", "momentum", "filters", "theta0_lr"}),
        ("sgd", {"inner_lr", "momentum", "filters"}),
        ("kfac", {"inner_lr", "filters", "kfac_damping", "kfac_clip"}),
    ],
)
def test_a_space_holds_what_its_method_uses(method, names):
    experiment = Omniglot()
    assert set(sweep_space(experiment, experiment.config("small", method=method), set())) == names


def test_declared_spaces_hold_the_presets():
    """Random search must be able to find what is there already."""
    for name, method in DECLARING:
        experiment = EXPERIMENTS[name]
        for preset in (experiment.preset(name, method) for name in experiment.presets):
            for setting, space in experiment.spaces[method].items():
                value = getattr(preset, setting)
                if value is not None and preset.preset != "alphabets":
                    inside = value in space.choices if isinstance(space, Choices) else space.low <= value <= space.high
                    assert inside, (name, method, setting)


def test_the_command_line_and_the_file_change_the_space(tmp_path):
    experiment = Synthetic()
    config = experiment.config("small")
    path = written(tmp_path / "s.json", {"lr": {"low": 1, "high": 2}, "hidden": {"low": 4, "high": 64, "log": True}})
    assert sweep_space(experiment, config, {"meta_lr"}, path) == {
        "lr": FloatRange(1.0, 2.0),
        "hidden": IntRange(4, 64, True),
    }
    path = written(tmp_path / "t.json", {"meta_lr": {"choices": [0.1, 1]}, "form": {"choices": ["printed", "peaks"]}})
    space = sweep_space(experiment, config, set(), path)
    assert space == {"meta_lr": Choices((0.1, 1.0)), "form": Choices(("printed", "peaks"))}
    assert read_space(written(tmp_path / "u.json", space_to_json(space)), experiment) == space
    with pytest.raises(WarpgradError, match=r"'form' is both in .* and fixed on the command line"):
        sweep_space(experiment, config, {"form"}, path)
    with pytest.raises(WarpgradError, match=r"nothing to search for synthetic.*--space FILE"):
        sweep_space(experiment, config, {"meta_lr"})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"warp": {"low": 1, "high": 2}}, "sets 'warp', which synthetic does not have"),
        ({"seed": {"low": 1, "high": 2}}, "would sweep 'seed', which must be the same for all trials"),
        ({"lr": {"low": "a", "high": 2}}, "'lr': it is \"a\", but must be a number"),
        ({"hidden": {"low": 1.5, "high": 2}}, "'hidden': it is 1.5, but must be an integer"),
        ({"lr": {"low": 2, "high": 2}}, "the range 2 to 2 is empty"),
        ({"lr": {"low": 0, "high": 2, "log": True}}, "cannot be logarithmic"),
        ({"lr": {"low": 0.1, "high": 1e999}}, "must have finite ends"),
        ({"lr": {"low": 0.1}}, 'give {"low"'),
        ({"lr": {"low": 0.1, "high": 1, "step": 3}}, 'give {"low"'),
        ({"lr": {"low": 0.1, "high": 1, "log": 1}}, "log is 1; it is true or false"),
        ({"lr": [0.1, 1]}, 'give {"low"'),
        ({"lr": {"choices": [0.1]}}, "give at least two values"),
        ({"lr": {"choices": [0.1, 0.1]}}, "give at least two values, each once"),
        ({"form": {"choices": ["printed", "round"]}}, 'it is "round", but must be one of printed, peaks'),
        ({"form": {"low": 1, "high": 2}}, "it is not a number"),
        ({"meta_lr": {"low": -1, "high": 1}}, "the search space of 'meta_lr' is out of bounds: meta_lr=-1"),
        ([1], "must contain a JSON object"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_a_bad_space_is_one_sentence(content, sentence, tmp_path):
    path = written(tmp_path / "space.json", content)
    experiment = Synthetic()
    with pytest.raises(WarpgradError) as refused:
        sweep_space(experiment, experiment.config("small"), set(), path)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_whole_lists_are_choices_of_a_setting_that_is_a_list(tmp_path):
    path = written(tmp_path / "space.json", {"widths": {"choices": [[4, 4], [8, 8, 16]]}})
    experiment = EXPERIMENTS["multi-shot"]
    space = read_space(path, experiment)
    assert space == {"widths": Choices(((4, 4), (8, 8, 16)))}
    assert read_space(written(tmp_path / "again.json", space_to_json(space)), experiment) == space
    assert sweep_space(experiment, experiment.config("small", method="leap"), {"widths"}).keys() == {
        "inner_lr", "momentum", "theta0_lr",
    }  # fmt: skip
    none = written(tmp_path / "none.json", {"widths": {"choices": [[4, 4], []]}})
    with pytest.raises(
        WarpgradError, match=r"the search space of 'widths' is out of bounds: .*name at least one block"
    ):
        sweep_space(experiment, experiment.config("small"), set(), none)
    wrong = written(tmp_path / "wrong.json", {"widths": {"choices": [[4, 4], [4, "wide"]]}})
    with pytest.raises(WarpgradError, match="'widths': it is \"wide\", but must be an integer"):
        read_space(wrong, experiment)


def test_the_image_experiments_search_filters_widths_and_momentum():
    """App. H: filter sizes were tuned for every method, layer sizes and momentum in the multi-shot experiment."""
    few, many = EXPERIMENTS["few-shot"], EXPERIMENTS["multi-shot"]
    for method in few.methods:
        assert {32, 64, 128} <= set(few.spaces[method]["filters"].choices), method
    assert 512 in few.spaces["cavia"]["filters"].choices, "the width of its published figures"
    for method in many.methods:
        space = many.spaces[method]
        assert {preset.widths for preset in many.presets.values()} <= set(space["widths"].choices), method
        assert 0.9 in space["momentum"].choices
        assert len(space["momentum"].choices) > 2


def test_settings_come_from_a_file_in_their_own_types(tmp_path):
    path = written(tmp_path / "c.json", {"lr": 1, "order": [0, 1, 2, 3, 4], "meta_steps": 3, "family": "sine"})
    settings = read_settings(path, ContinualLearning())
    assert settings == {"lr": 1.0, "order": (0, 1, 2, 3, 4), "meta_steps": 3, "family": "sine"}
    assert isinstance(settings["lr"], float)
    optional = written(
        tmp_path / "d.json", {"theta0_lr": None, "learned_alpha": True, "format": 1, "experiment": "omniglot"}
    )
    assert read_settings(optional, Omniglot()) == {"theta0_lr": None, "learned_alpha": True}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"learning_rate": 1}, "sets 'learning_rate', which continual does not have"),
        ({"experiment": "omniglot"}, "contains settings of omniglot, not of continual"),
        ({"meta_steps": 2.5}, "'meta_steps': it is 2.5, but must be an integer"),
        ({"meta_steps": True}, "it is true, but must be an integer"),
        ({"order": [0, "1"]}, 'it is "1", but must be an integer'),
        ({"order": 3}, "it is 3, but must be a list, each item an integer"),
        ({"split": "train"}, 'it is "train", but must be one of test, validation'),
        ({"lr": None}, "it is null, but must be a number"),
    ],
)
def test_a_bad_settings_file_is_one_sentence(content, sentence, tmp_path):
    with pytest.raises(WarpgradError) as refused:
        read_settings(written(tmp_path / "c.json", content), ContinualLearning())
    assert sentence in str(refused.value)
    with pytest.raises(WarpgradError, match="is not a file"):
        read_settings(tmp_path / "none.json", ContinualLearning())


def test_run_takes_a_file_and_options_win_over_it(tmp_path, monkeypatch, capsys):
    """preset < file < command line; the preset itself may stand in the file."""
    seen = []

    def execute(experiment, config, execution):
        seen.append(config)
        return {"steps": 0, "metrics": {"loss": 0.0}}

    monkeypatch.setattr("warpgrad.experiments.runner.execute", execute)
    path = str(written(tmp_path / "c.json", {"preset": "small", "meta_lr": 0.5, "hidden": 7}))
    dispatch(["run", "synthetic", "--config", path])
    dispatch(["run", "synthetic", f"--config={path}", "--hidden", "9", "--preset", "paper"])
    small, paper = Synthetic().presets["small"], Synthetic().presets["paper"]
    assert seen == [
        dataclasses.replace(small, meta_lr=0.5, hidden=7),
        dataclasses.replace(paper, meta_lr=0.5, hidden=9),
    ]
    for content, sentence in [
        ({"meta_lr": -1.0}, "meta_lr=-1.0"),
        ({"preset": "huge"}, "no preset 'huge'"),
        ({"x": 1}, "'x'"),
    ]:
        with pytest.raises(WarpgradError, match=sentence):
            dispatch(["run", "synthetic", "--config", str(written(tmp_path / "bad.json", content))])
    capsys.readouterr()


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("accuracy", "maximise"),
        ("auc", "maximise"),
        ("loss/warp", "minimise"),
        ("sequential/loss/final", "minimise"),
        ("task_loss_last", "minimise"),
        ("reached/gd", "maximise"),
    ],
)
def test_the_direction_is_told_from_the_name(metric, direction):
    assert direction_of(metric) == direction


@pytest.mark.parametrize("metric", ["coverage", "sequential/loss/transfer", "sequential/accuracy/forgetting", "glossy"])
def test_a_direction_that_cannot_be_told_is_asked_for(metric):
    with pytest.raises(WarpgradError, match="give --direction"):
        direction_of(metric)


def trial(number, value, **chosen):
    """What is read of one of Optuna's trials."""
    state = types.SimpleNamespace(name="FAIL" if value is None else "COMPLETE")
    return types.SimpleNamespace(number=number, state=state, params=chosen or {"meta_lr": 0.1}, value=value)


def planned(direction="minimise", **changes):
    config = dataclasses.replace(Synthetic().config("small", **changes), split="validation")
    return Sweep(Synthetic(), config, {"meta_lr": FloatRange(1e-4, 0.1)}, "random", "loss/warp", direction)


def test_ranks_and_counts():
    trials = [trial(0, None), trial(1, 2.0), trial(2, 3.0), trial(3, 1.0), trial(4, 3.0)]
    assert [one.number for one in planned("minimise").ranked(trials)] == [3, 1, 2, 4]
    assert [one.number for one in planned("maximise").ranked(trials)] == [2, 4, 1, 3]
    assert summary(trials) == "4 complete, 1 failed"


def test_the_best_trial_as_a_file_leaves_split_and_seed_to_the_reader():
    plan = planned(starts=3, seed=5)
    settings = best_settings(plan, trial(0, 1.0, meta_lr=0.02))
    assert settings == {
        "experiment": "synthetic", "preset": "small", "method": "warpgrad", "starts": 3, "meta_lr": 0.02,
    }  # fmt: skip
    header, rows = lines(plan, [trial(1, 0.51234567, meta_lr=0.0312345)])
    assert (header, rows) == (["trial", "loss/warp (validation)", "meta_lr"], [["trial-0001", "0.5123", "0.03123"]])


@pytest.mark.parametrize("words", [["--meta-lr", "0.1"], ["--meta_lr=0.1"], ["--no-learned-alpha"]])
def test_what_the_command_line_fixes_is_seen_however_it_is_written(words, tmp_path):
    name = "meta_lr" if "lr" in words[0] else "learned_alpha"
    space = written(tmp_path / "space.json", {name: {"choices": [0.1, 1] if name == "meta_lr" else [True, False]}})
    with pytest.raises(WarpgradError, match=f"'{name}' is both in .* and fixed on the command line"):
        dispatch(["sweep", "omniglot", *words, "--space", str(space)])


def test_no_password_reaches_the_page():
    words = ["omniglot", "--storage", "postgresql://me:secret@host/db", "--trials", "3"]
    assert without_address(words) == ["omniglot", "--storage", "ADDRESS", "--trials", "3"]
    assert without_address(["--storage=mysql://me:secret@h"]) == ["--storage=ADDRESS"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["maze"], "maze has no validation split"),
        (["synthetic", "--split", "test"], "cannot use the test split"),
        (["synthetic", "--trials", "0"], "trials=0"),
        (["synthetic", "--workers", "0"], "workers=0"),
        (["synthetic", "--study", "../up"], "study='../up' must be a name"),
        (["synthetic", "--study", ".."], "study='..' must be a name"),
        (["synthetic", "--metric", "coverage"], "give --direction"),
        (["synthetic", "--prune-by", "meta_loss"], "does nothing without --prune"),
        (["synthetic", "--method", "maml"], "no method 'maml'"),
        (["synthetic", "--meta-lr", "0.1"], "nothing to search"),
        (["synthetic", "--sampler", "grid"], "invalid choice 'grid'"),
        ([], "expected one of {synthetic, omniglot"),
    ],
)
def test_a_bad_sweep_is_one_sentence_and_leaves_nothing(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WarpgradError) as refused:
        dispatch(["sweep", *words])
    assert sentence in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_without_optuna_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in [name for name in sys.modules if name.startswith("warpgrad.sweep.")]:
        monkeypatch.delitem(sys.modules, name)  # what another test imported would not ask for optuna again
    sentence = r"optuna is not installed: pip install 'warpgrad\[sweep\]'"
    # `warpgrad.cli.main` names extras around every command.
    with pytest.raises(WarpgradError, match=sentence), naming_extras():
        dispatch(["sweep", "synthetic"])
    assert not list(tmp_path.iterdir())


def test_the_command_line_does_not_import_optuna_before_it_must():
    program = "import sys, warpgrad.cli.sweep; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_experiments_without_a_space_declare_an_empty_one():
    assert EXPERIMENTS["maze"].spaces == {}

"""The text experiment on a tiny encoder: every method, the page from a record, and what `warpgrad adapt` hands over."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support import ROOT
from tests.support.experiment_runs import Runs, evaluation_of, group_of
from tests.support.text_encoder import save_tiny_encoder, sentences, write_csv
from warpgrad.cli.main import main
from warpgrad.data.sources.text import open_text, prepare_clinc, prepare_text
from warpgrad.errors import WarpgradError
from warpgrad.experiments import records
from warpgrad.experiments.base import Execution, Results
from warpgrad.experiments.comparison import difference
from warpgrad.experiments.reproduction import cells
from warpgrad.experiments.runner import concluded, execute
from warpgrad.experiments.text_intents.config import LABELS, MAIN, META, METHODS, PROBES
from warpgrad.experiments.text_intents.evaluation import TOGETHER, auroc, check_sentences, held_out_tasks, steps_tested
from warpgrad.experiments.text_intents.experiment import TextIntents
from warpgrad.experiments.text_intents.methods import classifier, open_sentences, recipe, text_learner
from warpgrad.experiments.text_intents.page import result_lines
from warpgrad.experiments.text_intents.tuning import adapted_by, centroid_head, logistic, pair_loss
from warpgrad.io import building
from warpgrad.layers.sentences import CentroidHead, open_encoder
from warpgrad.layers.transformer import load_warped
from warpgrad.objectives import Approximate, Exact

pytest.importorskip("transformers", reason="the extra `text` is not installed")

EXPERIMENT = TextIntents()
TINY: dict[str, Any] = {
    "layers": 1, "rank": 2, "ways": 3, "train_shots": (1, 2), "steps": 2, "meta_steps": 2, "validate_every": 1,
    "validation_draws": 1, "shots": (1, 5), "draws": 2, "query": 3, "together": 1, "outside": 0, "test_steps": 3,
    "tune_steps": 2, "batch_shots": 2, "meta_query": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Runs:
    root = tmp_path_factory.mktemp("text")
    prepare_text(write_csv(root / "own.csv", sentences(20, 9)), root / "data", name="own")

    def tiny(**changes: Any) -> Any:
        used = {**TINY, **changes, "data": str(root / "data"), "encoder": str(encoder)}
        if changes.get("method") not in META:
            del used["test_steps"]
        if changes.get("method") not in (*META, "tune-theta", "lora"):
            del used["rank"]
        if changes.get("method") not in ("tune-theta", "tune-all", "lora", "contrastive"):
            del used["tune_steps"]
        return EXPERIMENT.config("small", **used)

    return Runs(EXPERIMENT, tiny, root)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_judged_on_the_same_tasks(method: str, runs: Runs) -> None:
    found = evaluation_of(runs[method])
    first = evaluation_of(runs["centroid"])
    for shots in (1, 5):
        assert list(found[f"accuracy_{shots}shot"]) == list(first[f"accuracy_{shots}shot"])
        assert list(found[f"together_{shots}shot"]) == [f"{TOGETHER}/0"]
        curve = found["curves"][str(shots)]
        assert {len(values) for values in curve.values()} == {len(found["tested_at"])}
        assert len(found["seconds_at"][str(shots)]) == len(found["tested_at"])
    # Before the first step every method whose encoder is as it was is the nearest centroid.
    if method in ("tune-theta", "tune-all", "lora"):
        for name, values in found["curves"]["5"].items():
            assert values[0] == pytest.approx(first["accuracy_5shot"][name])


def test_what_is_theta_and_what_is_phi(runs: Runs) -> None:
    encoder = open_encoder(runs.tiny(method="warp-maml").encoder)
    theta = text_learner(runs.tiny(method="maml"), encoder).theta0
    warped = text_learner(runs.tiny(method="warp-maml"), encoder)
    assert list(theta) == [name.replace("dense.task", "dense") for name in warped.theta0]
    assert all(".warp." in name for name in warped.phi)
    assert set(text_learner(runs.tiny(method="anil"), encoder).theta0) == {"head.correction", "head.bias"}


def test_the_objective_and_the_schedule_are_settings(runs: Runs) -> None:
    config = runs.tiny(method="warp-leap", objective="approximate")
    encoder = open_encoder(config.encoder)
    assert isinstance(recipe(config, encoder).method.objective, Approximate)
    assert isinstance(recipe(runs.tiny(method="warp-maml", objective="exact"), encoder).method.objective, Exact)
    assert recipe(runs.tiny(method="maml", meta_schedule="constant"), encoder).schedule is None
    first, last = (json.loads(line)["lr/theta0"] for line in (runs["maml"] / "metrics.jsonl").read_text().splitlines())
    assert first == pytest.approx(2 * last), "half way down the cosine at the second of two meta-steps"


def test_sentences_that_are_adapted_to_are_not_judged_on(runs: Runs) -> None:
    config = runs.tiny(method="centroid")
    data = open_sentences(config)
    for _, task in held_out_tasks(config, data, 5):
        for support, query in zip(task.support, task.query, strict=True):
            assert len(support) == 5
            assert not set(support) & set(query)


def test_a_label_too_small_for_the_test_is_refused_before_meta_training(runs: Runs, tmp_path: Path) -> None:
    rows = sentences(20, 9)
    whole = prepare_text(write_csv(tmp_path / "whole.csv", rows), tmp_path / "whole")
    tested = whole.labels[whole.split(0)["test"][0]]
    few = [row for row in rows if row[1] != tested] + [row for row in rows if row[1] == tested][:5]
    prepare_text(write_csv(tmp_path / "few.csv", few), tmp_path / "few")
    for method in ("warp-maml", "centroid"):
        config = dataclasses.replace(runs.tiny(method=method, seed=0), data=str(tmp_path / "few"))
        with pytest.raises(WarpgradError, match=rf"'{tested}' of few has 5 sentences: 5 shots at test \(--shots\)"):
            execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
        assert not list(tmp_path.rglob("*.safetensors")), "nothing was encoded for it either"
        assert not list((tmp_path / "run").rglob("metrics.jsonl"))


def test_a_label_too_small_for_meta_training_is_refused_with_the_option_that_asks_for_it(
    runs: Runs, tmp_path: Path
) -> None:
    rows = sentences(20, 9)
    whole = prepare_text(write_csv(tmp_path / "whole.csv", rows), tmp_path / "whole")
    config = dataclasses.replace(runs.tiny(method="warp-maml", seed=0), data=str(tmp_path / "whole"), train_shots=(9,))
    trained = whole.labels[whole.split(0)["train"][0]]
    with pytest.raises(WarpgradError, match=rf"'{trained}' .*: 9 shots in meta-training \(--train-shots\)"):
        check_sentences(config)


def test_meta_trained_methods_take_no_more_than_twenty_steps_at_test() -> None:
    for method in META:
        assert EXPERIMENT.config("small", method=method).adaptation_steps <= 20


def test_the_page_and_the_table_from_a_record(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group_of(LABELS[method], [runs[method]]) for method in ("warp-maml", "centroid", "tune-theta")]
    monkeypatch.setattr(records, "check_commit", lambda *_: None)  # the source need not be committed for this
    records.write_record(tmp_path / "record.json", MAIN, "small", Results(groups))
    again = records.read_record(tmp_path / "record.json").groups()
    header, rows = result_lines(again)
    assert header[1].startswith("1 shot")
    assert [row[0] for row in rows] == ["Warp-MAML", "Nearest centroid", "Fine-tuning θ"]
    assert difference(again[0], again[1], "accuracy_5shot") is not None
    page = EXPERIMENT.page(again, "Intents").write(tmp_path / "page.html").read_text()
    assert "processor seconds of adaptation" in page


def test_a_finished_run_that_was_packed_is_not_repeated(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("pack", ROOT / "results" / "unfinished" / "pack.py")
    assert spec is not None
    assert spec.loader is not None
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    monkeypatch.setattr(packing, "HERE", tmp_path)
    monkeypatch.setattr(packing.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="a commit"))
    archive = packing.pack(runs["warp-maml"])
    assert archive.stat().st_size < 100_000, "without its weights"
    unpacked = packing.unpack(archive, tmp_path / "runs")
    config = runs.tiny(method="warp-maml")
    assert concluded(EXPERIMENT, config, unpacked) == concluded(EXPERIMENT, config, runs["warp-maml"]) is not None


def test_tables_give_every_method_as_many_trials(runs: Runs) -> None:
    trials: dict[str, int] = {}
    for row in PROBES.rows:
        trials[row.label.split(",")[0]] = trials.get(row.label.split(",")[0], 0) + 1
    assert set(trials.values()) == {4}
    assert set(trials) == set(LABELS.values()) - {"Nearest centroid"}
    seeds = {row.label: MAIN.seeds_of(row, "small") for row in MAIN.rows}
    assert {label: count for label, count in seeds.items() if count != 4} == {"FOMAML": 2, "ANIL": 2, "Meta-SGD": 2}
    assert len(cells(EXPERIMENT, MAIN, Path("runs"), "small", None)) == 10 * 4 + 3 * 2


def test_on_validation_domains_the_best_length_counts(runs: Runs, tmp_path: Path) -> None:
    config = runs.tiny(method="tune-all", split="validation", together=0)
    execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    found = evaluation_of(tmp_path / "run")
    curve = np.mean([np.mean(list(own.values()), axis=0) for own in found["curves"].values()], axis=0)
    assert found["metrics"]["accuracy"] == pytest.approx(curve[1:].max())
    assert found["metrics"]["steps"] == found["tested_at"][1 + int(curve[1:].argmax())]


def test_steps_at_which_methods_are_tested() -> None:
    assert steps_tested(20) == [0, 1, 2, 5, 10, 20]
    assert steps_tested(3) == [0, 1, 2, 3]
    assert steps_tested(0) == [0, 20]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "bert"}, "has no method 'bert'"),
        ({"method": "maml", "warp": "residual"}, "maml does not use warp"),
        ({"method": "maml", "objective": "exact"}, "maml does not use objective"),
        ({"method": "centroid", "inner_lr": 0.5}, "centroid does not use inner_lr"),
        ({"shots": ()}, "name at least one number of shots"),
        ({"train_shots": (1, 1)}, "each once"),
        ({"ways": 1}, "at least 2 labels"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WarpgradError, match=message):
        EXPERIMENT.config("small", **changes)


def test_left_out_logits_are_those_of_a_loop() -> None:
    draw = torch.Generator().manual_seed(0)
    support = F.normalize(torch.randn(7, 4, generator=draw, dtype=torch.float64), dim=-1)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 0])
    head = CentroidHead(4, 5, temperature=3.0).double()
    with torch.no_grad():
        head.correction.normal_(generator=draw)
        head.bias.normal_(generator=draw)
        found = head.left_out(support, labels, 3)
        for row in range(7):
            for label in range(3):
                members = [place for place in range(7) if labels[place] == label and place != row] or [row]
                centroid = F.normalize(support[members].mean(0), dim=-1)
                wanted = 3.0 * support[row] @ centroid + support[row] @ head.correction[label] + head.bias[label]
                torch.testing.assert_close(found[row, label], wanted)
    with pytest.raises(WarpgradError, match=r"the head has room for .* classes, not for 6"):
        head.weights(support, labels, 6)


def test_the_auroc_is_that_of_the_adapted_model(runs: Runs, tmp_path: Path) -> None:
    """Recomputed from the last state of the model, on each task with sentences out of scope beside its own."""
    rows, others = sentences(20, 9), [text for text, _ in sentences(20, 3, seed=1)]
    published = {"train": rows, "oos_test": [[text, "oos"] for text in others]}
    domains = {f"domain{group}": [f"label{4 * group + place}" for place in range(4)] for group in range(5)}
    for name, content in (("data_full", published), ("domains", domains)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    prepare_clinc(tmp_path, tmp_path / "data")
    config = dataclasses.replace(runs.tiny(method="tune-all", outside=5, together=0), data=str(tmp_path / "data"))
    execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    found = evaluation_of(tmp_path / "run")
    data = open_sentences(config)
    for name, task in held_out_tasks(config, data, 5):
        *_, (net, _) = (fitted() for fitted in adapted_by(config, classifier(config, data.encoder), task))
        head, labels = centroid_head(net, task), torch.arange(len(task.query)).repeat_interleave(config.query)
        with torch.no_grad():
            states, mask = task.states.batch([*(place for own in task.query for place in own), *task.outside])
            surest = F.linear(net.embed(states, mask), *head).softmax(1).amax(1)
        assert len(task.outside) == 5
        assert found["auroc_5shot"][name] == pytest.approx(100 * auroc(surest[: len(labels)], surest[len(labels) :]))
    assert set(found["auroc_1shot"]) == set(found["accuracy_1shot"])


def test_auroc_counts_pairs() -> None:
    inside, outside = torch.tensor([0.9, 0.5, 0.5, 0.2]), torch.tensor([0.5, 0.1, 0.9])
    pairs = [(a > b) + 0.5 * (a == b) for a in inside.tolist() for b in outside.tolist()]
    assert auroc(inside, outside) == pytest.approx(float(np.mean(pairs)))


def test_pairs_of_both_kinds_weigh_the_same() -> None:
    vectors = torch.eye(3)[[0, 0, 1, 2]]
    assert pair_loss(vectors, torch.tensor([0, 0, 1, 2])) == 0
    assert pair_loss(vectors, torch.tensor([0, 1, 1, 2])) == pytest.approx((1.0 + 1 / 5) / 2)
    assert pair_loss(vectors[1:], torch.tensor([0, 1, 2])) == 0  # no pair of one label: 1 shot


def test_logistic_regression_is_at_its_least(runs: Runs) -> None:
    config = runs.tiny(method="logistic")
    data = open_sentences(config)
    net = classifier(config, data.encoder)
    _, task = next(iter(held_out_tasks(config, data, 5)))
    weight, bias = (value.requires_grad_() for value in logistic(net, task, 0.1))
    batch = task.batch(task.support)
    with torch.no_grad():
        vectors = net.embed(batch.states, batch.mask)
    loss = F.cross_entropy(F.linear(vectors, weight, bias), batch.labels, reduction="sum")
    slopes = torch.autograd.grad(loss + 0.05 * weight.square().sum(), [weight, bias])
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-2


def ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(words)
    output = capsys.readouterr()
    return int(stop.value.code or 0), output.out + output.err


def test_adapt_hands_over_a_folder_that_plain_transformers_loads(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sentences(4, 5, seed=3)
    own = write_csv(tmp_path / "my.csv", rows, "sentence,intent")
    words = ["adapt", str(runs["warp-maml"]), "--data", str(own), "--out", str(tmp_path / "model")]
    words += ["--text-field", "sentence", "--label-field", "intent"]
    code, said = ended(words, capsys)
    assert code == 0, said
    assert "20 sentences, 4 labels, 3 steps" in said
    import transformers

    loaded, info = transformers.AutoModel.from_pretrained(
        tmp_path / "model", local_files_only=True, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert list(loaded.config.id2label.values()) == [f"label{place}" for place in range(4)]
    spec = importlib.util.spec_from_file_location("classify", tmp_path / "model" / "classify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "warpgrad", None)  # where this library is not installed
        spec.loader.exec_module(module)
        found = module.classify([text for text, _ in rows])
    right = sum(label == wanted for (label, _), (_, wanted) in zip(found, rows, strict=True))
    assert right >= 15
    assert "already exists" in ended(words, capsys)[1]
    assert not list(tmp_path.glob(".partial-*"))


def classified(folder: Path) -> Any:
    """What the `classify.py` of a folder says about a sentence."""
    spec = importlib.util.spec_from_file_location("classify", folder / "classify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.classify(["word0 word1"])


def test_a_damaged_adapted_folder_is_refused_by_all_that_read_it(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write_csv(tmp_path / "own.csv", sentences(4, 5, seed=1))
    words = ["adapt", str(runs["warp-maml"]), "--data", str(own)]
    code, said = ended([*words, "--out", str(tmp_path / "model")], capsys)
    assert code == 0, said
    assert classified(tmp_path / "model")
    for name in sorted(path.name for path in (tmp_path / "model").glob("*.[js]*")):
        file = tmp_path / "model" / name
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], b"", None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(SystemExit, match=r"is damaged"):
                classified(tmp_path / "model")
            if (tmp_path / "model" / "checksums.json").exists():
                with pytest.raises(WarpgradError, match=r"restore|make the folder again|is not a folder with"):
                    open_encoder(tmp_path / "model")
            file.write_bytes(whole)
    checksums = tmp_path / "model" / "checksums.json"
    checksums.write_text(checksums.read_text().replace("head.safe", "heae.safe"))
    with pytest.raises(SystemExit, match=r"checksums\.json is damaged"):
        classified(tmp_path / "model")


def test_two_processes_do_not_write_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / ".partial-model" / "old").mkdir(parents=True)  # of a process that was killed
    with building(tmp_path / "model") as begun:
        assert not list(begun.iterdir())
        (begun / "a").write_text("ours")
        with pytest.raises(WarpgradError, match="another process is writing"), building(tmp_path / "model"):
            raise AssertionError("the folder was given away")
    with pytest.raises(WarpgradError, match="already exists"), building(tmp_path / "model"):
        raise AssertionError("the folder is made already")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "a"]


def write_as_found(path: Path, labels: int) -> int:
    """A file as people have them: 35 to 227 sentences of a label, quotes, commas, line breaks and spaces at the ends,
    and labels of several words. Returns how many rows it has."""
    frames = ("{}", '"{}", she said', "{},\n and thanks\n", "  {}  ", "\n{}", "{} – £5, ünicode")
    drawn = sentences(labels, 227)
    rows = []
    for label in range(labels):
        own = drawn[227 * label :][: 35 + (label * 61) % 193]
        rows += [
            (frames[place % len(frames)].format(text), f"a {name}, or so") for place, (text, name) in enumerate(own)
        ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("sentence", "label"), *rows[::2], *rows[1::2]])
    return len(rows)


def test_another_set_of_sentences_goes_through_every_command_as_it_is(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    count = write_as_found(tmp_path / "bank.csv", 77)
    assert count > 9_000
    code, said = ended(["data", "prepare", "text", "--source", "bank.csv", "--text-field", "sentence"], capsys)
    assert code == 0, said
    assert "77 labels, no domains to split by" in said
    text = open_text("bank")
    assert {name: len(own) for name, own in text.split(0).items()} == {"train": 46, "validation": 8, "test": 23}
    assert sorted(map(len, text.members()))[0] >= 30
    assert all(sentence == sentence.strip() for sentence in text.texts)
    tiny = {"layers": 1, "rank": 2, "meta-steps": 2, "validate-every": 2, "draws": 1, "query": 3, "test-steps": 2}
    run = ["run", "text-intents", "--preset", "small", "--data", "bank", "--encoder", str(encoder), "--out", "run"]
    run += [word for name, value in tiny.items() for word in (f"--{name}", str(value))]
    for command in (
        run,
        ["evaluate", "run"],
        ["report", "run", "--out", "page"],
        ["adapt", "run", "--data", "bank.csv", "--text-field", "sentence", "--steps", "1", "--out", "model"],
        ["verify", "run"],
    ):
        code, said = ended(command, capsys)
        assert code == 0, said
    found = evaluation_of(tmp_path / "run")
    assert set(found["accuracy_20shot"]) == {"labels drawn at random/0"}
    assert set(found["together_20shot"]) == {f"{TOGETHER}/0"}


def test_what_cannot_be_merged_is_refused_or_kept_as_it_is(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(EXPERIMENT, runs.tiny(method="warp-leap", warp="residual"), Execution(tmp_path / "run", progress=False))
    own = write_csv(tmp_path / "my.csv", sentences(3, 2))
    words = ["adapt", str(tmp_path / "run"), "--data", str(own), "--out", str(tmp_path / "model")]
    code, said = ended(words, capsys)
    assert code == 2
    assert "non-linear and cannot be merged" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "model").exists()
    assert ended([*words, "--keep-warps"], capsys)[0] == 0
    assert type(load_warped(tmp_path / "model")).__name__ == "BertModel"


def test_bad_input_to_adapt_is_refused_in_one_sentence(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_csv(tmp_path / "good.csv", sentences(2, 2))
    one = write_csv(tmp_path / "one.csv", sentences(1, 3))
    (tmp_path / "empty").mkdir()
    run = str(runs["warp-maml"])
    for words, message in [
        (["adapt"], "missing from warpgrad adapt"),
        (["adapt", str(tmp_path / "empty"), "--data", str(good)], "config.json is missing"),
        (["adapt", run, "--data", str(one)], "one label, 'label0'"),
        (["adapt", run, "--data", str(tmp_path / "none.csv")], "cannot be read"),
        (["adapt", run, "--data", str(good), "--encoder", str(tmp_path / "empty")], "is not a folder with a"),
        (["adapt", run, "--data", str(good), "--steps", "0"], "at least 1 step"),
        (["adapt", str(runs["centroid"]), "--data", str(good)], "which is not meta-trained"),
    ]:
        code, said = ended([*words, "--out", str(tmp_path / "model")] if len(words) > 1 else words, capsys)
        assert code == 2, said
        assert message in said
        assert said.count("\n") == 1, said
        assert not (tmp_path / "model").exists()

"""Labelled sentences: what a file may look like, what is refused and how, splits, and the tasks drawn from them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import warpgrad as wg
from warpgrad.cli.main import main
from warpgrad.data.archives import VARIABLE
from warpgrad.data.sources.text import Fields, open_text, prepare_clinc, prepare_text, read_rows
from warpgrad.data.tasks.intents import IntentFamily, IntentShape, IntentTask, SentenceStates, cached_states
from warpgrad.io import sealed
from warpgrad.training import checkpoint

real_clinc = pytest.mark.skipif(
    not (Path(os.environ.get(VARIABLE, "nowhere")) / "clinc150" / "data_full.json").is_file(),
    reason="needs CLINC150: set WARPGRAD_DATA to the folder that holds clinc150",
)


def rows(labels: int = 6, each: int = 4) -> list[tuple[str, str]]:
    return [(f"sentence {n} about {label}", f"label{label}") for label in range(labels) for n in range(each)]


def csv_file(path: Path, pairs: list[tuple[str, str]] | None = None, header: str = "text,label") -> Path:
    lines = [header, *(f'"{text}",{label}' for text, label in (rows() if pairs is None else pairs))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def words_encoded(texts: list[str]) -> tuple[Tensor, Tensor]:
    """A stand-in for an encoder: one state per word, its length and the sum of its letters' codes."""
    longest = max(len(text.split()) for text in texts)
    states, mask = torch.zeros(len(texts), longest, 2), torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in enumerate(texts):
        for place, word in enumerate(text.split()):
            states[row, place] = torch.tensor([float(len(word)), float(sum(word.encode()))])
            mask[row, place] = 1
    return states, mask


def test_csv_and_jsonl_say_the_same(tmp_path: Path) -> None:
    csv_file(tmp_path / "a.csv", header="sentence,intent")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"sentence": t, "intent": i}) for t, i in rows()))
    fields = Fields("sentence", "intent")
    first = prepare_text(tmp_path / "a.csv", tmp_path / "one", fields=fields)
    second = prepare_text(tmp_path / "a.jsonl", tmp_path / "two", fields=fields)
    assert (first.texts, first.labels, first.label_of) == (second.texts, second.labels, second.label_of)
    assert first.sha256 == second.sha256
    assert not first.has_domains()
    assert open_text(str(tmp_path / "one")).texts == first.texts


def test_a_sentence_that_stands_twice_is_kept_once(tmp_path: Path) -> None:
    text = prepare_text(csv_file(tmp_path / "a.csv", [*rows(), *rows()]), tmp_path / "out")
    assert len(text.texts) == len(rows())


def test_labels_without_domains_are_split_by_the_seed(tmp_path: Path) -> None:
    text = prepare_text(csv_file(tmp_path / "a.csv", rows(20, 2)), tmp_path / "out")
    splits = text.split(0)
    assert {name: len(own) for name, own in splits.items()} == {"train": 12, "validation": 2, "test": 6}
    assert sorted(label for own in splits.values() for label in own) == list(range(20))
    assert text.split(1) != splits
    assert text.split(0) == splits


def test_domains_stay_whole(tmp_path: Path) -> None:
    pairs = [f'"{text}",{label},domain{int(label[5:]) % 10}' for text, label in rows(40, 2)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["text,label,domain", *pairs]))
    text = prepare_text(path, tmp_path / "out")
    assert text.has_domains()
    splits = text.split(3)
    homes = {name: {text.domains[label] for label in own} for name, own in splits.items()}
    assert {name: len(own) for name, own in homes.items()} == {"train": 6, "validation": 1, "test": 3}
    assert not homes["train"] & homes["test"]


BAD: dict[str, tuple[bytes, str]] = {
    "an empty label": (b"text,label\nhello,a\nbye,\n", "line 3 of .* has an empty label"),
    "an empty sentence": (b"text,label\n,a\n", "has no sentence"),
    "one class": (b"text,label\nhello,a\nbye,a\n", "has only one label, 'a': classification needs at least two"),
    "no utf-8": (b"text,label\nhello,a\n\xff\xfe\xfa,b\n", r"is not UTF-8 text \(line 3\)"),
    "a line of 10 MB": (b"text,label\nhello,a\n" + b"x" * 10_000_000 + b",b\n", "line 3 of .* has 1000000"),
    "no such field": (b"sentence,label\nhello,a\n", "has no field 'text' .*it has sentence, label.*--text-field"),
    "no rows": (b"text,label\n", "has no rows"),
    "nothing": (b"", "has no field 'text'"),
    "a comma without quotes": (b"text,label\nhello, you,a\nbye,b\n", "line 2 of .* has more fields than the header"),
    "an open quote": (b'text,label\n"hello,a\n', "cannot be read as CSV"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused_in_one_sentence(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, message = BAD[what]
    (tmp_path / "bad.csv").write_bytes(raw)
    with pytest.raises(wg.WarpgradError, match=message) as refusal:
        prepare_text(tmp_path / "bad.csv", tmp_path / "out")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as stop:
        main(["data", "prepare", "text", "--source", str(tmp_path / "bad.csv"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_more_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where nothing has been prepared
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(wg.WarpgradError, match="cannot be read"):
        prepare_text(tmp_path / "nothing.csv", tmp_path / "out")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "b"}\n[1]\n')
    with pytest.raises(wg.WarpgradError, match=r"line 2 of .* is not a JSON object"):
        prepare_text(tmp_path / "a.jsonl", tmp_path / "out")
    (tmp_path / "b.csv").write_text("text,label,domain\na,x,one\nb,x,two\nc,y,one\n")
    with pytest.raises(wg.WarpgradError, match="'x' is in the domains 'one' and 'two'"):
        prepare_text(tmp_path / "b.csv", tmp_path / "out")
    with pytest.raises(wg.WarpgradError, match=r"not a prepared set of sentences.*prepare clinc150"):
        open_text("clinc150")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "text.json").write_text('{"format": 1, "name": "x"}')
    with pytest.raises(wg.WarpgradError, match="is not a prepared set of sentences"):
        open_text(str(tmp_path / "out"))
    with pytest.raises(wg.WarpgradError, match=r"has no data_full\.json"):
        prepare_clinc(tmp_path, tmp_path / "clinc")
    few = prepare_text(csv_file(tmp_path / "few.csv", rows(3, 2)), tmp_path / "few")
    with pytest.raises(wg.WarpgradError, match="3 labels; 6 or more are needed"):
        few.split(0)


@pytest.mark.parametrize(
    "change",
    [
        {"texts": [1] * 24},
        {"texts": "x" * 24},
        {"texts": ["\ud800"] * 24},
        {"labels": [{}] * 6},
        {"labels": ["same"] * 6},
        {"domains": ["one"]},
        {"domains": [[]] * 6},
        {"label_of": [0.0] * 24},
        {"label_of": [True] * 24},
        {"out_of_scope": [None]},
        {"name": 5},
    ],
)
def test_a_prepared_set_with_a_right_checksum_is_checked_entry_by_entry(tmp_path: Path, change: object) -> None:
    prepare_text(csv_file(tmp_path / "a.csv"), tmp_path / "out")
    file = tmp_path / "out" / "text.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    file.write_text(json.dumps(sealed({**content, **change})))  # type: ignore[dict-item]
    with pytest.raises(wg.WarpgradError, match="is not a prepared set of sentences"):
        open_text(str(tmp_path / "out"))


def test_a_field_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", [("a", "b,c")], header="text,label,label")
    with pytest.raises(wg.WarpgradError, match="has the field 'label' 2 times"):
        read_rows(path, Fields())


def test_an_unpaired_surrogate_is_refused_with_its_line(tmp_path: Path) -> None:
    for row in ('{"text": "a \\ud800", "label": "b"}', '{"text": "a", "label": "\\udfff"}'):
        (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "label": "a"}}\n{row}\n')
        with pytest.raises(wg.WarpgradError, match=r"line 2 of .* is an unpaired surrogate"):
            read_rows(tmp_path / "a.jsonl", Fields())


def test_states_of_other_sentences_or_without_sense_are_computed_again(tmp_path: Path) -> None:
    texts = ["one", "one two three", "four five"]
    made = cached_states(texts, words_encoded, tmp_path / "here", "key")
    cached_states(texts, lambda asked: (words_encoded(asked)[0] + 1, words_encoded(asked)[1]), tmp_path, "other")
    (path,), (other,) = (tmp_path / "here").glob("states-*"), tmp_path.glob("states-*")
    kept = checkpoint.read_checkpoint(path)
    wrong = [
        {**kept, "offsets": kept["offsets"][:-1]},
        {**kept, "offsets": kept["offsets"].float()},
        {**kept, "states": kept["states"] * float("nan")},
        {**kept, "states": "none"},
    ]
    for content in (checkpoint.read_checkpoint(other), *wrong):
        checkpoint.write_checkpoint(path, content)
        torch.testing.assert_close(cached_states(texts, words_encoded, path.parent, "key").states, made.states)
    del kept["key"]  # as earlier versions wrote it
    checkpoint.write_checkpoint(path, kept)
    assert len(cached_states(texts, words_encoded, path.parent, "key")) == 3
    assert "key" not in checkpoint.read_checkpoint(path)


def test_states_are_kept_and_read_again(tmp_path: Path) -> None:
    texts = ["one", "one two three", "four five"]
    made = cached_states(texts, words_encoded, tmp_path, "key")
    states, mask = made.batch([1, 0])
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert states[0, :, 0].tolist() == [3.0, 3.0, 5.0]
    assert states[1, 1:].abs().sum() == 0

    def never(texts: list[str]) -> tuple[Tensor, Tensor]:
        raise AssertionError("the cache was not read")

    again = cached_states(texts, never, tmp_path, "key")
    torch.testing.assert_close(again.states, made.states, rtol=0, atol=0)
    with pytest.raises(AssertionError, match="was not read"):
        cached_states(texts, never, tmp_path, "another encoder")
    (path,) = tmp_path.glob("states-*.safetensors")
    path.write_bytes(path.read_bytes()[:40])
    torch.testing.assert_close(cached_states(texts, words_encoded, tmp_path, "key").states, made.states)


def family(tmp_path: Path, shape: IntentShape, each: int = 8) -> IntentFamily:
    text = prepare_text(csv_file(tmp_path / "a.csv", rows(6, each)), tmp_path / "out")
    states = SentenceStates.encoded(text.texts, words_encoded)
    return IntentFamily(text, states, range(6), shape)


def test_tasks_are_functions_of_their_seed_and_never_judge_what_they_adapt_to(tmp_path: Path) -> None:
    found = family(tmp_path, IntentShape(ways=4, shots=(2, 3), query=4, batch_shots=2, meta_query=1))
    shots = set()
    for seed in range(20):
        task = found.sample(seed)
        assert task.support == found.sample(seed).support
        assert task.classes == 4
        shots |= {len(own) for own in task.support}
        for support, query in zip(task.support, task.query, strict=True):
            assert not set(support) & set(query)
            assert len(query) == 4
        assert len(task.adapt_batch(0).labels) == 8
        meta = task.meta_batch(0)
        assert (len(meta.support), len(meta.labels), len(meta.states)) == (8, 4, 12)
    assert shots == {2, 3}


def test_a_label_with_one_sentence_where_five_shots_are_asked(tmp_path: Path) -> None:
    with pytest.raises(wg.WarpgradError, match=r"the label 'label0' of a has one sentence: 5 shots .* need 6"):
        family(tmp_path, IntentShape(shots=(5,)), each=1)


def test_steps_draw_other_sentences_and_the_same_step_the_same(tmp_path: Path) -> None:
    task: IntentTask = family(tmp_path, IntentShape(ways=2, shots=(6,), query=2, batch_shots=2)).sample(0)
    states = [task.adapt_batch(k).states for k in range(6)]
    assert torch.equal(states[0], task.adapt_batch(0).states)
    assert len({str(drawn.tolist()) for drawn in states}) > 1
    assert task.with_seed(5).adapt_batch(0).labels.tolist() == [0, 0, 1, 1]


@given(raw=st.binary(max_size=200), suffix=st.sampled_from([".csv", ".jsonl"]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_rows_or_one_sentence(raw: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"fuzz{suffix}"
    path.write_bytes(b"text,label\n" + raw if suffix == ".csv" else raw)
    found, refusal = [("one", "label", "")], ""
    try:
        found = read_rows(path, Fields())
    except wg.WarpgradError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert all(text and label for text, label, _ in found)


@pytest.mark.real_data
def test_clinc_without_sentences_is_refused(tmp_path: Path) -> None:
    for name in ("data_full.json", "domains.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(wg.WarpgradError, match="has no sentences"):
        prepare_clinc(tmp_path, tmp_path / "clinc")


@real_clinc
def test_clinc_as_published(tmp_path: Path) -> None:
    text = prepare_clinc(None, tmp_path / "clinc")
    assert (len(text.labels), len(set(text.domains)), len(text.out_of_scope)) == (150, 10, 1200)
    assert {len(own) for own in text.members()} == {150}


@pytest.mark.real_data
@real_clinc
def test_a_set_of_77_labels_without_domains_is_taken_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What another public intent set looks like, made of CLINC150's sentences."""
    clinc = prepare_clinc(None, tmp_path / "clinc")
    pairs = [(text, clinc.labels[label]) for text, label in zip(clinc.texts, clinc.label_of, strict=True) if label < 77]
    pairs += [(f"{text} please", label) for text, label in pairs[: 13_000 - len(pairs)]]
    csv_file(tmp_path / "bank.csv", [(text.replace('"', ""), label) for text, label in pairs], "sentence,label")
    source, out = str(tmp_path / "bank.csv"), str(tmp_path / "bank")
    with pytest.raises(SystemExit) as stop:
        main(["data", "prepare", "text", "--source", source, "--text-field", "sentence", "--out", out])
    assert stop.value.code == 0
    assert "77 labels, no domains to split by" in capsys.readouterr().out
    text = open_text(str(tmp_path / "bank"))
    assert {name: len(own) for name, own in text.split(0).items()} == {"train": 46, "validation": 8, "test": 23}

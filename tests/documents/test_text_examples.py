"""The examples on models of Hugging Face: sentences in, a classifier out; a decoder that takes up an author's hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import ROOT
from tests.support.text_encoder import save_tiny_encoder, sentences, write_csv

transformers = pytest.importorskip("transformers", reason="the extra `text` is not installed")


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_sentences_to_a_classifier(tmp_path: Path) -> None:
    encoder = save_tiny_encoder(tmp_path / "encoder")
    past = write_csv(tmp_path / "past.csv", sentences(8, 7))
    new = write_csv(tmp_path / "new.csv", sentences(3, 4, seed=1))
    module = example("intents")
    assert len((ROOT / "examples" / "intents.py").read_text().splitlines()) < 60
    module.main(str(past), str(new), str(tmp_path / "model"), encoder=str(encoder), meta_steps=1)
    loaded = transformers.AutoModel.from_pretrained(tmp_path / "model", local_files_only=True)
    assert loaded.config.id2label == {0: "label0", 1: "label1", 2: "label2"}
    assert (tmp_path / "model" / "classify.py").exists()


def test_padding_counts_in_no_loss() -> None:
    module = example("author")
    torch.manual_seed(0)
    model = module.decoder(width=16, layers=1).eval()
    author = module.Author(0)
    tokens, mask = author.adapt_batch(0)
    with torch.no_grad():
        together = float(author.loss(model, (tokens, mask)))
        alone = [
            (int(own.sum()) - 1, float(author.loss(model, (row[None, : own.sum()], own[None, : own.sum()]))))
            for row, own in zip(tokens, mask, strict=True)
        ]
    assert len({count for count, _ in alone}) > 1
    mean = sum(count * loss for count, loss in alone) / sum(count for count, _ in alone)
    assert together == pytest.approx(mean, rel=1e-5)


def test_a_decoder_adapts_and_is_handed_over_plain(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("author")
    module.HELD_OUT = 2
    rows = module.main(meta_steps=12)
    assert rows["after it, adapted"] < rows["before meta-training"]
    assert "a plain GPT2LMHeadModel" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["intents", "author"])
def test_the_readme_names_it(name: str) -> None:
    assert f"python examples/{name}.py" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")

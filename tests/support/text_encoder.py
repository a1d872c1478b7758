"""A tiny encoder with a tokenizer in a folder of Hugging Face's, and sentences that it can tell apart."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = [f"word{number}" for number in range(60)]


def save_tiny_encoder(folder: Path) -> Path:
    """BERT with three layers of width 16 and a vocabulary of whole words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: place for place, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=64,
    )  # fmt: skip
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def sentences(labels: int, each: int, seed: int = 0) -> list[tuple[str, str]]:
    """(sentence, label): three words that a label prefers, among others."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for label in range(labels):
        own = [WORDS[(3 * label + place) % len(WORDS)] for place in range(3)]
        for _ in range(each):
            others = [WORDS[int(place)] for place in torch.randint(len(WORDS), (3,), generator=draw)]
            order = torch.randperm(6, generator=draw).tolist()
            found.append((" ".join([*own, *others][place] for place in order), f"label{label}"))
    return found


def write_csv(path: Path, rows: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text("\n".join([header, *(f"{text},{label}" for text, label in rows)]) + "\n")
    return path

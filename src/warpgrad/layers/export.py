"""An adapted classifier as a folder that plain transformers loads, and that classifies without this library.

config.json, model.safetensors, tokenizer…   the encoder with θ and the warps merged: AutoModel.from_pretrained(folder)
head.safetensors                             weight and bias of the linear head on the mean of the last states
classify.py                                  a few lines that put the two together
checksums.json                               the SHA-256 of all others, which classify.py and `warpgrad verify` compare
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn

from warpgrad.errors import WarpgradError
from warpgrad.io import building, write_bytes, write_checksums, writing
from warpgrad.layers.sentences import LONGEST, Encoder, Head, SentenceClassifier, replace_upper_part
from warpgrad.layers.transformer import layer_stack, mergeable, save_warped, without_progress_bars

CLASSIFY = f'''\
"""Classify sentences with the model in this folder: python classify.py "a sentence" "another".

Needs torch, transformers and safetensors. A sentence is the mean of its tokens' last states, scaled to length 1; the
head is a linear layer on it.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer


def check(folder):
    """Exit with one sentence if any file has changed since it was written."""
    try:
        listed = json.loads((Path(folder) / "checksums.json").read_bytes())
        expected = {{"checksums.json": listed.pop("sha256"), **listed["files"]}}
        found = {{"checksums.json": json.dumps(listed, sort_keys=True, separators=(",", ":")).encode()}}
        for name in expected:
            content = found[name] if name in found else (Path(folder) / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != expected[name]:
                raise SystemExit(f"{{name}} is damaged: it does not match its checksum; make the folder again.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SystemExit(f"the folder is damaged ({{error}}); make it again.") from None


def classify(sentences, folder=Path(__file__).parent):
    """(label, probability) of every sentence."""
    check(folder)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    head = load_file(Path(folder) / "head.safetensors")
    inputs = tokenizer(sentences, padding=True, truncation=True, max_length={LONGEST}, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs)[0]
        mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
        pooled = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
        probability, place = (pooled @ head["weight"].T + head["bias"]).softmax(-1).max(-1)
    return [(model.config.id2label[int(p)], float(q)) for p, q in zip(place, probability)]


if __name__ == "__main__":
    for sentence, (label, probability) in zip(sys.argv[1:], classify(sys.argv[1:])):
        print(f"{{label}}\\t{{probability:.3f}}\\t{{sentence}}")
'''


def export_classifier(
    folder: Path,
    encoder: Encoder,
    net: SentenceClassifier,
    head: Head,
    labels: Sequence[str],
    *,
    layers: int,
    keep_warps: dict[str, Any] | None = None,
) -> None:
    """Write the folder, completely or not at all.

    Args:
        folder: Where to; it must not be there yet.
        encoder: The encoder that was adapted.
        net: Its upper layers, adapted.
        head: (W, b) on them.
        labels: What the classes are called.
        layers: How many layers `net` has.
        keep_warps: Keep warps as modules, by these settings of `warp_transformer`: for those that cannot be merged.
    """
    if folder.exists():
        raise WarpgradError(f"{folder} already exists: give another folder with --out.")
    if keep_warps is None and not mergeable(net.upper):
        raise WarpgradError(
            "the warps of this run are non-linear and cannot be merged into the weights, so plain transformers could "
            "not load the folder: pass --keep-warps, or meta-train with --warp linear."
        )
    from safetensors import SafetensorError

    with writing(folder), without_progress_bars(), building(folder) as begun:
        try:
            if keep_warps is None:
                whole = cast(Any, replace_upper_part(encoder.model, net.upper, layers))
                _name_labels(whole.config, labels)
                whole.save_pretrained(begun)
                write_bytes(begun / "classify.py", CLASSIFY.encode())
            else:
                whole = cast(Any, _with_warps(encoder.model, net.upper, layers))
                _name_labels(whole.config, labels)
                depth = len(list(encoder.model.get_submodule(layer_stack(encoder.model)).children()))
                save_warped(whole, begun, **{**keep_warps, "layers": list(range(depth - layers, depth))})
            encoder.tokenizer.save_pretrained(begun)
            _save_head(begun / "head.safetensors", head)
            write_checksums(begun)
        except SafetensorError as error:  # raised by its writer when the disk is full
            raise WarpgradError(f"cannot write {folder}: {error}; fix that and repeat the command.") from error


def _name_labels(config: Any, labels: Sequence[str]) -> None:
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: place for place, label in enumerate(labels)}


def _save_head(path: Path, head: Head) -> None:
    from safetensors.torch import save

    weight, bias = (value.detach().clone().contiguous() for value in head)
    write_bytes(path, save({"weight": weight, "bias": bias}))


def _with_warps(encoder: nn.Module, upper: nn.Module, layers: int) -> nn.Module:
    """Return a copy of the encoder whose top layers are replaced by the warped ones, unmerged."""
    whole = copy.deepcopy(encoder)
    stack = layer_stack(encoder)
    own = cast(nn.ModuleList, whole.get_submodule(stack))
    for index, layer in enumerate(upper.get_submodule(stack).children()):
        own[len(own) - layers + index] = copy.deepcopy(layer)
    return whole.eval()

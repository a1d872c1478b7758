"""Warps and low-rank task parameters for existing transformers.

    warped = warp_transformer(AutoModel.from_pretrained(folder), layers=2)
    learner = Learner(warped)                            # θ: low-rank updates; φ: the warps; all else is constant
    plain = merge_transformer(adapted)                   # a model of the very class that was given

A warp ω sits between a projection and the residual sum that it feeds: after the output projection of the attention
(`attention`), after the second projection of the feed-forward block (`feed-forward`), or both. Between the two there is
nothing but dropout, so a linear warp A h + a merges into the projection, W' = A W and b' = A b + a, and plain
transformers can load the merged model. A non-linear warp (two layers with a residual connection) cannot be merged: it
stays a module, and `save_warped` and `load_warped` store such a model. Warps begin as the identity map and low-rank
updates as zero, so the warped model begins as the one that was given.

This module does not import transformers until a folder is read.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from warpgrad.errors import WarpgradError
from warpgrad.io import check_files, read_object, write_json, writing
from warpgrad.layers.augmentation import interleave
from warpgrad.layers.warps import Residual, feed_forward_warp
from warpgrad.lazy import naming_extras
from warpgrad.model.partition import is_warp, unmark

M = TypeVar("M", bound=nn.Module)
WarpKind = Literal["linear", "residual"]
KINDS: tuple[WarpKind, ...] = ("linear", "residual")

PROJECTIONS = {
    "attention": (
        "attention.output.dense", "attn.c_proj", "self_attn.o_proj", "self_attn.out_proj", "attention.out_lin",
        "attention.attn.o", "attn.Wo", "attention.dense",
    ),
    "feed-forward": (
        "output.dense", "mlp.c_proj", "mlp.down_proj", "mlp.fc2", "fc2", "ffn.lin2", "mlp.Wo", "mlp.dense_4h_to_h",
    ),
}  # fmt: skip
"""The projections in front of the two residual sums of a layer, by their names inside it in the families of
transformers: BERT, RoBERTa, ELECTRA; GPT-2; Llama, Mistral; BART, OPT; DistilBERT; MPNet; ModernBERT; GPT-NeoX."""
SETTINGS = "warpgrad.json"
"""The file beside the weights of a model with non-linear warps that says how to rebuild it."""

_LAYER = re.compile(r"^(?P<stack>(?:.*\.)?[A-Za-z_]+)\.(?P<index>\d+)\.(?P<inside>.+)$")


class LowRank(nn.Module):
    """W x + b + scale · U (D x): a frozen projection, and θ = (D, U) of rank r beside it (LoRA).

    D is drawn like the weight of a linear layer and U begins at zero, so that the sum begins as the projection itself.
    """

    def __init__(self, projection: nn.Module, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        inputs, outputs = projection_sizes("the projection", projection)
        weight = cast(Tensor, projection.weight)
        self.projection = projection.requires_grad_(False)
        self.scale = scale
        self.down = nn.Parameter(torch.empty(rank, inputs, dtype=weight.dtype, device=weight.device))
        self.up = nn.Parameter(torch.zeros(outputs, rank, dtype=weight.dtype, device=weight.device))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, h: Tensor) -> Tensor:
        update = nn.functional.linear(nn.functional.linear(h, self.down), self.up)
        return cast(Tensor, self.projection(h) + self.scale * update)


def warp_transformer(
    model: M,
    *,
    layers: int | Sequence[int] | None = None,
    after: str | Sequence[str] = ("attention", "feed-forward"),
    warp: WarpKind | None = "linear",
    hidden: int | None = None,
    bias: bool = True,
    rank: int = 8,
    on: str | Sequence[str] = ("attention", "feed-forward"),
    scale: float = 1.0,
) -> M:
    """Return a copy of a Hugging Face encoder or decoder with warps and low-rank task parameters in some layers.

        warp_transformer(bert, layers=2)                               # the top two layers
        warp_transformer(gpt2, after="feed-forward", warp="residual", hidden=64)
        warp_transformer(bert, layers=[4, 5], on=("attention.self.query", "attention.self.value"))
        warp_transformer(peft_model, rank=0)                           # θ is what peft left trainable

    The copy is marked for `Learner(...)`: φ is the warps, θ the low-rank updates, and everything else is constant.

    Args:
        model: Any module with a stack of numbered layers; it is not changed.
        layers: How many of the top layers, or their indices; all if None.
        after: What the warps follow: `attention`, `feed-forward`, or patterns over module names inside a layer.
        warp: `linear`, or `residual` for h + W₂ tanh(W₁ h); None for no warps at all.
        hidden: The width between the two layers of a residual warp; that of the model if None.
        bias: Whether a linear warp has a shift a. Warning: where the projections of a family have no bias by their
            configuration, as Llama's, plain transformers drops the shift from a saved model; leave it out there.
        rank: r of the task parameters; 0 where θ is what requires a gradient already, as after peft's LoRA.
        on: The projections that θ is added to, named as in `after`.
        scale: Factor of the low-rank update.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, **sizes))
        >>> len(wg.Learner(wg.warp_transformer(bert, layers=1, rank=2)).phi)
        4
    """
    if warp is not None and warp not in KINDS:
        raise WarpgradError(f"warp={warp!r} is unknown; choose one of {', '.join(KINDS)}.")
    if hidden is not None and warp != "residual":
        raise WarpgradError("hidden= is the inner width of a residual warp: pass warp='residual' too.")
    if rank < 0:
        raise WarpgradError(f"rank={rank}: it must be at least 0.")
    warped = copy.deepcopy(model)
    if rank:
        warped.requires_grad_(False)
        for name in selected_projections(warped, on, layers, "on"):
            _replace(warped, name, LowRank(warped.get_submodule(name), rank, scale))
    elif all(parameter.requires_grad for parameter in model.parameters()):
        raise WarpgradError(
            "rank=0 adapts every parameter that requires a gradient, which is the whole model: freeze the others "
            "first, or pass a rank of at least 1."
        )
    if warp is None:
        return warped
    places = set(selected_projections(model, after, layers, "after"))

    def make(name: str, module: nn.Module) -> nn.Module:
        width = projection_sizes(name, module)[1]
        if warp == "linear":
            return feed_forward_warp(width) if bias else nn.Linear(width, width, bias=False)
        return feed_forward_warp(width, hidden=hidden or width, residual=True)

    return interleave(warped, make, after=lambda name, _: name in places, identity=True)


def merge_transformer(model: M) -> M:
    """Return an equivalent copy without warps and low-rank updates: both are merged into the projections.

    peft merges its own layers. A non-linear warp cannot be merged and raises an error that names it.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, **sizes))
        >>> type(wg.merge_transformer(wg.warp_transformer(bert, rank=2))).__name__
        'BertModel'
    """
    plain = unmark(_without_warps(copy.deepcopy(model)))
    if callable(getattr(plain, "merge_and_unload", None)):  # a peft model; its base has peft's layers merged
        plain = cast(Any, plain).merge_and_unload()
    return plain.requires_grad_(True)


def _without_warps(model: M) -> M:
    for name, child in list(model.named_modules()):
        if not _is_chain(child):
            continue
        first, warp = list(child.children())
        if not isinstance(warp, nn.Linear):
            raise WarpgradError(
                f"the warp behind '{name}' is non-linear, so it cannot be merged into the projection: keep the model "
                "with save_warped(...), or use linear warps."
            )
        projection = _plain(first)
        weight, bias = _matrix(projection), _bias(projection)
        with torch.no_grad():
            shift = warp.bias if bias is None else warp.weight @ bias + (0 if warp.bias is None else warp.bias)
            _set(projection, warp.weight @ weight, shift)
        _replace(model, name, projection)
    for name, child in list(model.named_modules()):
        if isinstance(child, LowRank):
            _replace(model, name, _plain(child))
    return model


def _plain(module: nn.Module) -> nn.Module:
    """Return the bare projection with its low-rank update, `LowRank`'s or peft's, added to its weight."""
    if isinstance(module, LowRank):
        with torch.no_grad():
            update = module.scale * module.up @ module.down
            _set(module.projection, _matrix(module.projection) + update, _bias(module.projection))
        return module.projection
    if callable(getattr(module, "get_base_layer", None)):  # a peft layer
        cast(Any, module).merge()
        return cast(nn.Module, cast(Any, module).get_base_layer())
    return module


def is_merged(model: nn.Module) -> bool:
    """Return whether a model contains no warps and no low-rank updates."""
    return not any(isinstance(child, LowRank) or _is_chain(child) for child in model.modules())


def mergeable(model: nn.Module) -> bool:
    """Return whether every warp of a model is linear."""
    return all(isinstance(list(child.children())[1], nn.Linear) for child in model.modules() if _is_chain(child))


def save_warped(model: nn.Module, folder: str | Path, **settings: Any) -> None:
    """Save a warped Hugging Face model with its warps as modules; `settings` are those given to `warp_transformer`.

    Warning: plain transformers cannot load it; `load_warped` can. A merged model has its own `save_pretrained`.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        cast(Any, model).config.save_pretrained(folder)
        state = {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}
        save_file(state, folder / "warped.safetensors")
    write_json(folder / SETTINGS, {"class": type(model).__name__, "warp_transformer": settings})


def load_warped(folder: str | Path) -> nn.Module:
    """Load a model that `save_warped` saved."""
    from safetensors.torch import load_file

    with naming_extras():
        import transformers
    folder = Path(folder)
    if not (folder / SETTINGS).is_file():
        raise WarpgradError(f"{folder} has no {SETTINGS}: it was not written by save_warped(...).")
    check_files(folder)
    kept = read_object(folder / SETTINGS)
    family = getattr(transformers, str(kept.get("class")), None)
    if not (isinstance(family, type) and issubclass(family, transformers.PreTrainedModel)):
        raise WarpgradError(f"{folder / SETTINGS} does not name a transformers model class: {kept.get('class')!r}.")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    model: nn.Module = warp_transformer(cast(Any, family)(config), **kept["warp_transformer"])
    model.load_state_dict(load_file(folder / "warped.safetensors"))
    return model.eval()


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable the progress bars of transformers, which shows one per file although local files take only a moment."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    shown = is_progress_bar_enabled()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()  # type: ignore[no-untyped-call]


def selected_projections(
    model: nn.Module, wanted: str | Sequence[str], layers: int | Sequence[int] | None, option: str = "after"
) -> list[str]:
    """Return the full names of projections by kind (`attention`, `feed-forward`) or by pattern inside a layer."""
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    if not patterns:
        raise WarpgradError(f"{option}=(): name at least one place, such as attention or feed-forward.")
    inside = layer_modules(model)
    chosen = chosen_layers(sorted({index for index, _ in inside.values()}), layers)
    found: list[str] = []
    for pattern in patterns:
        names = PROJECTIONS.get(pattern, (pattern,))
        own = [
            full
            for full, (index, local) in inside.items()
            if index in chosen
            and any(fnmatchcase(local, name) for name in names)
            and is_projection(model.get_submodule(full))
        ]
        if not own:
            raise WarpgradError(
                f"{option}={pattern!r} matches no projection in the layers of the {type(model).__name__}; name modules "
                f"inside a layer, such as {_example(inside)!r}."
            )
        found += own
    return list(dict.fromkeys(found))


def layer_modules(model: nn.Module) -> dict[str, tuple[int, str]]:
    """Map full names to (index of the layer, name inside the layer) for the largest numbered stack in a model."""
    stacks = {name: child for name, child in model.named_modules() if isinstance(child, nn.ModuleList)}
    if not stacks:
        raise WarpgradError(
            f"the {type(model).__name__} has no stack of numbered layers (an nn.ModuleList): name the modules that "
            "warps follow with interleave(...) instead."
        )
    stack = max(stacks, key=lambda name: sum(1 for _ in stacks[name].modules()))
    found = {}
    for name, _ in model.named_modules():
        match = _LAYER.match(name)
        if match is not None and match["stack"] == stack:
            found[name] = (int(match["index"]), match["inside"])
    return found


def layer_stack(model: nn.Module) -> str:
    """Return the name of the numbered stack of layers."""
    first = next(iter(layer_modules(model)))
    match = _LAYER.match(first)
    assert match is not None
    return match["stack"]


def chosen_layers(present: Sequence[int], layers: int | Sequence[int] | None) -> set[int]:
    if layers is None:
        return set(present)
    if isinstance(layers, int):
        if not 1 <= layers <= len(present):
            raise WarpgradError(f"layers={layers}: the model has {len(present)}; choose 1 to {len(present)} of them.")
        return set(present[-layers:])
    missing = sorted(set(layers) - set(present))
    if missing or not layers:
        raise WarpgradError(f"layers={list(layers)}: the model has layers {present[0]} to {present[-1]}.")
    return set(layers)


def is_projection(module: nn.Module) -> bool:
    """Return whether a module is a linear layer, GPT-2's transposed one, or either inside a peft layer or `LowRank`."""
    return isinstance(module, nn.Linear | LowRank) or hasattr(module, "get_base_layer") or hasattr(module, "nf")


def projection_sizes(name: str, module: nn.Module) -> tuple[int, int]:
    """Return (width of the input, width of the output)."""
    if isinstance(module, LowRank):
        module = module.projection
    if callable(getattr(module, "get_base_layer", None)):
        module = cast(Any, module).get_base_layer()
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise WarpgradError(f"'{name}' is a {type(module).__name__}, which is not a projection with a weight matrix.")
    outputs, inputs = _matrix(module).shape
    return inputs, outputs


def _matrix(projection: nn.Module) -> Tensor:
    """Return W as [outputs, inputs]."""
    weight = cast(Tensor, projection.weight)
    return weight.t() if hasattr(projection, "nf") else weight


def _bias(projection: nn.Module) -> Tensor | None:
    return cast("Tensor | None", projection.bias)


def _set(projection: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    own = weight.t() if hasattr(projection, "nf") else weight
    projection.weight = nn.Parameter(own.detach().clone().contiguous())
    projection.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach().clone()))


def _is_chain(module: nn.Module) -> bool:
    """Return whether a module is a projection followed by a warp, as `interleave` builds it."""
    children = dict(module.named_children())
    return list(children) == ["task", "warp"] and (
        is_warp(children["warp"]) or isinstance(children["warp"], nn.Linear | Residual | nn.Sequential)
    )


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    path, _, key = name.rpartition(".")
    setattr(model.get_submodule(path), key, module)


def _example(inside: dict[str, tuple[int, str]]) -> str:
    return next((local for _, local in inside.values() if local.endswith(("dense", "proj"))), "attention.output.dense")

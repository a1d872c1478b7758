"""Networks whose weights the seed of a run decides alone, so that all methods of a seed begin alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.io import read_json
from warpgrad.keys import fold
from warpgrad.layers import identity_, keep_variance_
from warpgrad.layers.variance import root_mean_square
from warpgrad.training.checkpoint import load
from warpgrad.training.state import Weights, load_weights, weights

T = TypeVar("T")

WARP, HEAD = "warp", "head"
"""How the names of warp-layers begin, and the name of the head."""

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""


def keyed(seed: int, role: str, make: Callable[[], T]) -> T:
    """Whatever weights `make` draws, drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(seed, role))
        return make()


def begun_as(
    plain: nn.Sequential, warped: nn.Sequential, warp_init: str, inputs: Tensor | None = None
) -> nn.Sequential:
    """`warped` at the weights of the same network without warp-layers.

    Args:
        plain: The network without warp-layers.
        warped: The same with layers called `warp…`, at their own random weights.
        warp_init: Leave them there (`own`), make them the identity map (`identity`), or scale them so that activations
            behind each have the root mean square of those in front of it (`scaled`).
        inputs: What `scaled` measures on, in one pass through the network.
    """
    warped.load_state_dict(plain.state_dict(), strict=False)
    warps = [child for name, child in warped.named_children() if name.startswith(WARP)]
    if warp_init == "identity":
        for warp in warps:
            identity_(warp)
    elif warp_init == "scaled":
        if inputs is None:
            raise WarpgradError("warp_init='scaled' measures activations: give the inputs to measure them on.")
        for child, activations in _passed(warped, inputs):
            if child in warps:
                keep_variance_(child, activations)
    return warped


def activation_sizes(network: nn.Module, inputs: Tensor) -> dict[str, Any]:
    """The root mean squares of activations in front of (`before`) and behind (`after`) every warp-layer of a sequential
    network, and of the `head`'s inputs, with batch statistics in batch-norm."""
    names = {child: name for name, child in network.named_children()}
    sizes = [(names[child], root_mean_square(activations)) for child, activations in _passed(network, inputs)]
    warps = [place for place, (name, _) in enumerate(sizes) if name.startswith(WARP)]
    return {
        "before": [sizes[place][1] for place in warps],
        "after": [sizes[place + 1][1] for place in warps],
        "head": dict(sizes)[HEAD],
    }


def _passed(network: nn.Module, inputs: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every child with what reaches it; a child may be changed before the next is asked for. Batch-norm uses the
    statistics of the batch, and its running ones are left alone."""
    activations = inputs
    for child in network.children():
        yield child, activations
        with torch.no_grad():
            activations = copy.deepcopy(child).train()(activations)


def side_of(shape: Shape) -> int:
    """The side of square images."""
    _, height, width = shape
    if height != width:
        raise WarpgradError(f"images are {height}×{width}; the network takes square ones.")
    return height


def trained(make: Callable[[bool], Method], checkpoint: Path, *, adapts_head: bool = True) -> tuple[Method, list[str]]:
    """The method of a run with its best weights, and the names of what does not fit these settings and begins anew.

    Only the head may: it is then drawn afresh on every task, and what a rule or T knew of it begins at its start value.

    Args:
        make: The method for these settings, at its start; its argument says whether the head is to be a fresh one.
        checkpoint: Of the run.
        adapts_head: Whether adaptation would train a fresh head; where it would not, one is refused.
    """
    method = make(False)
    state = load(checkpoint, method.learner.device)
    stored: Weights = state["best"] or state["weights"]
    anew = _misfits(weights(method), stored)
    if anew:
        if not adapts_head:
            raise WarpgradError(
                f"this method does not adapt its head, so the head of {checkpoint} must fit: evaluate with the ways "
                "and the image size of meta-training."
            )
        method = make(True)
        own = weights(method)
        stored = {
            group: {name: own[group][name] if name in anew else value for name, value in entries.items()}
            for group, entries in stored.items()
        }
    load_weights(method, stored, checkpoint)
    return method, anew


def other_data(data: str, name: str, run: Path) -> list[str]:
    """What the output says where a run is tested on other `data`, called `name`, than it was meta-trained on."""
    before = read_json(run / "config.json")["data"]
    if data == before:
        return []
    return [f"Images are normalised by the training classes of {name}, not by those of {before}."]


def note(anew: Sequence[str]) -> list[str]:
    """What the output says of it."""
    if not anew:
        return []
    return [
        "The head of meta-training does not fit and is drawn afresh on every task; what begins anew: "
        f"{', '.join(dict.fromkeys(anew))}."
    ]


def _misfits(own: Weights, stored: Weights) -> list[str]:
    """The parts of the head that have another shape; with them the whole head, which begins anew as one."""
    heads = {
        group: [name for name in entries if name.split(".")[0] == HEAD and name in stored[group]]
        for group, entries in own.items()
    }
    other = [
        name for group, names in heads.items() for name in names if stored[group][name].shape != own[group][name].shape
    ]
    return sorted({*other, *heads["module"]}) if other else []

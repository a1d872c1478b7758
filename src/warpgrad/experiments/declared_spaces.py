"""The spaces that experiments declare for `warpgrad sweep`: method -> setting -> what to choose it from.

The ranges are ours: around each preset's value, wide enough to hold those of the other methods. The paper gives none.
"""

from __future__ import annotations

from collections.abc import Mapping

from warpgrad.experiments.search_space import Choices, FloatRange, Space

Spaces = Mapping[str, Mapping[str, Space]]

_STEP_SIZE = FloatRange(0.01, 1.0, log=True)
_FILTERS = Choices((16, 32, 64, 128))
_MOMENTUM = Choices((0.0, 0.5, 0.9))
_ADAPTATION: Mapping[str, Space] = {"inner_lr": _STEP_SIZE, "momentum": _MOMENTUM, "filters": _FILTERS}
_INITIALISATION: Mapping[str, Space] = {**_ADAPTATION, "theta0_lr": _STEP_SIZE}
_KFAC: Mapping[str, Space] = {
    "inner_lr": _STEP_SIZE,
    "filters": _FILTERS,
    "kfac_damping": FloatRange(1e-3, 1.0, log=True),
    "kfac_clip": FloatRange(1e-2, 1.0, log=True),
}

OMNIGLOT: Spaces = {
    "warp-leap": {**_INITIALISATION, "meta_lr": _STEP_SIZE},
    **dict.fromkeys(("leap", "reptile", "fomaml", "maml", "finetuning"), _INITIALISATION),
    "sgd": _ADAPTATION,
    "kfac": _KFAC,
}

_WARPED: Mapping[str, Space] = {"meta_lr": FloatRange(1e-4, 1e-2, log=True)}
CONTINUAL: Spaces = {
    "warpgrad": _WARPED,
    "warp-current": _WARPED,
    "no-warp": {"lr": FloatRange(3e-4, 3e-2, log=True)},
    "ewc": {"lr": FloatRange(1e-3, 1e-2, log=True), "strength": FloatRange(1e2, 1e5, log=True)},
}

SYNTHETIC: Spaces = {
    "warpgrad": {"meta_lr": FloatRange(1e-4, 1e-1, log=True)},
    "no-warp": {"lr": _STEP_SIZE},
}

_ADAM = FloatRange(1e-4, 1e-2, log=True)
_MULTI_SHOT: Mapping[str, Space] = {
    "inner_lr": FloatRange(0.002, 0.5, log=True),
    "momentum": Choices((0.0, 0.5, 0.9, 0.95)),
    "widths": Choices(((16, 16, 32, 32, 48, 48), (32, 32, 80, 80, 128, 128), (64, 64, 160, 160, 256, 256))),
}
MULTI_SHOT: Spaces = {
    "warp-leap": {**_MULTI_SHOT, "theta0_lr": _ADAM, "meta_lr": _ADAM},
    **{method: {**_MULTI_SHOT, "theta0_lr": _ADAM} for method in ("leap", "reptile")},
    "sgd": _MULTI_SHOT,
}

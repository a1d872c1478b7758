"""The settings of the few-shot experiment (§4.1, App. H), and the paper's values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from warpgrad.experiments.search_space import Choices, FloatRange, Space, Spaces

if TYPE_CHECKING:
    from warpgrad.data.tasks.episodes import EpisodeShape

METHODS = (
    "warp-maml", "maml", "fomaml", "anil", "reptile", "meta-sgd", "meta-curvature", "t-nets", "mt-nets", "cavia",
)  # fmt: skip
DATA = ("cifar-fs", "fc100", "mini-imagenet", "tiered-imagenet", "omniglot-fewshot")
TRAIN_SHOTS = {1: 5, 5: 15}
"""Shots of the test -> shots of meta-training, which are more (App. H)."""
_SEARCHED: Mapping[str, Mapping[str, float]] = {
    method: {"inner_lr": alpha}
    for method, alpha in (("warp-maml", 0.15), ("maml", 0.05), ("meta-sgd", 0.05), ("t-nets", 0.05), ("cavia", 150.0))
}
"""The step sizes that the table `few-shot-steps` chose; methods that it does not search use MAML's."""


@dataclass(frozen=True)
class FewShotConfig(Config):
    """Settings; the defaults are the paper's. It does not state step sizes, the validation schedule or how warps are
    initialised: those are ours."""

    method: str = "warp-maml"
    data: str = "mini-imagenet"
    """cifar-fs, fc100, mini-imagenet, tiered-imagenet, omniglot-fewshot, or your own, by name or by folder."""
    ways: int = 5
    """N, the number of classes of an episode."""
    shots: int = 1
    """The number of images of each class to adapt to, in validation and test."""
    train_shots: int | None = None
    """The same in meta-training. None means 5 for 1-shot and 15 for 5-shot tests (App. H), otherwise as in the test."""
    query: int = 15
    """L, the number of further images of each class, for the meta-loss and the test."""
    rotations: bool = False
    """Add images rotated by 90°, 180° and 270° as further classes, in all splits; for omniglot-fewshot."""
    flips: bool = False
    """Flip images horizontally at random in meta-training."""
    filters: PositiveInt = 128
    """The number of channels of each of the four blocks."""
    warp_init: Literal["identity", "own"] = "identity"
    """Start the warp-layers of warp-maml as the identity map (identity), or at random weights (own)."""
    context: PositiveInt = 100
    """The size of CAVIA's context."""
    temperature: PositiveFloat = 0.5
    """The temperature of the masks of mt-nets."""
    batch_norm: Literal["batch", "running"] = "batch"
    """What batch-norm uses at test: the statistics of the query set (batch), or the episode's running ones."""
    steps: PositiveInt = 5
    """K, the number of adaptation steps in meta-training."""
    inner_lr: PositiveFloat = 0.05
    """α, the step size of adaptation; each method has its own default, chosen by the table `few-shot-steps`."""
    meta_lr: PositiveFloat = 0.001
    """Adam's step size for φ: the warps, T, and the parameters that CAVIA and ANIL do not adapt."""
    theta0_lr: PositiveFloat = 0.001
    """Adam's step size for θ0."""
    rule_lr: PositiveFloat = 0.001
    """Adam's step size for the parameters of a rule: step sizes, curvature factors, masks."""
    meta_clip: PositiveFloat = 10.0
    """The bound on the norm of the meta-gradient of each of these groups."""
    meta_batch: PositiveInt = 1
    """The number of tasks in each meta-step."""
    meta_steps: PositiveInt = 60_000
    """The number of meta-steps."""
    validate_every: PositiveInt = 1000
    """The number of meta-steps between validations; the weights with the best validation accuracy are kept."""
    validation_episodes: PositiveInt = 600
    """The number of episodes of a validation."""
    patience: Annotated[int, Bound("it must be at least 1, or None to run all meta-steps", least=1)] | None = None
    """The number of validations without a new best that end the run; None runs all meta-steps."""
    test_curve_every: NonNegativeInt = 0
    """The number of meta-steps between tests during meta-training, which choose nothing; 0 for no such tests."""
    test_curve_episodes: PositiveInt = 600
    """The number of episodes of each of these tests: the first ones of the final test."""
    split: Literal["test", "validation"] = "test"
    """Whether to test on the test classes or on the validation classes."""
    test_episodes: Annotated[int, Bound("it must be at least 2 for an interval", least=2)] = 600
    """The number of episodes of the final test, the same ones for every method and seed."""
    test_steps: PositiveInt = 5
    """The number of adaptation steps at test; validation takes K."""

    @property
    def test_shape(self) -> EpisodeShape:
        return self._shape(self.shots)

    @property
    def train_shape(self) -> EpisodeShape:
        return self._shape(TRAIN_SHOTS.get(self.shots, self.shots) if self.train_shots is None else self.train_shots)

    def _shape(self, shots: int) -> EpisodeShape:
        from warpgrad.data.tasks.episodes import EpisodeShape  # needs torch

        return EpisodeShape(self.ways, shots, self.query)


PRESETS: Mapping[str, FewShotConfig] = MappingProxyType(
    {
        "paper": FewShotConfig(),
        "small": FewShotConfig(
            preset="small",
            data="cifar-fs",
            filters=32,
            meta_steps=2000,
            validate_every=250,
            validation_episodes=100,
            test_curve_episodes=300,
        ),
    }
)
"""`paper`: miniImageNet 1-shot; its tables set data and shots. `small`: CIFAR-FS, 32 filters, fewer meta-steps."""

_INNER, _META = FloatRange(0.005, 1.5, log=True), FloatRange(1e-4, 1e-2, log=True)
_FILTERS = Choices((32, 64, 128))
_THETA0: Mapping[str, Space] = {"inner_lr": _INNER, "theta0_lr": _META, "filters": _FILTERS}
SPACES: Spaces = {
    **dict.fromkeys(("maml", "fomaml", "reptile"), _THETA0),
    **{method: {**_THETA0, "meta_lr": _META} for method in ("warp-maml", "anil", "t-nets")},
    **{method: {**_THETA0, "rule_lr": _META} for method in ("meta-sgd", "meta-curvature")},
    "mt-nets": {**_THETA0, "meta_lr": _META, "rule_lr": _META},
    "cavia": {
        "inner_lr": FloatRange(5.0, 1500.0, log=True),
        "meta_lr": _META,
        "filters": Choices((32, 64, 128, 256, 512)),
    },
}
"""The search spaces of `warpgrad sweep`. The paper only says 128 filters or fewer; those of CAVIA are its authors'."""


NAME = "few-shot"
PUBLISHED_FILTERS: Mapping[str, int] = {
    **dict.fromkeys(("reptile", "meta-sgd", "t-nets", "mt-nets", "maml"), 32),
    "cavia": 512,
}
"""Filters of the networks that the published figures of other methods are for; Warp-MAML has the paper's 128.

MAML and T-Nets overfit with 128 filters (App. H). CAVIA's 51.8 and 65.9 are for 512; its authors have 49.8 and 64.6 for
128, and 47.2 and 59.1 for 32."""

COST: Mapping[int, Mapping[str, float]] = {
    1: {"warp-maml": 2.15, "maml": 1.0, "meta-sgd": 1.0, "t-nets": 1.25, "cavia": 0.53},
    5: {"warp-maml": 1.56, "maml": 1.0, "meta-sgd": 1.0, "t-nets": 1.27, "cavia": 0.45},
}
"""Shots of the test -> method -> processor time of a meta-step beside one of MAML, at preset `small` on CIFAR-FS, one
thread: measured by benchmarks/few_shot_cost.py."""
SMALL_STEPS = {1: 2000, 5: 800}
"""Meta-steps at the small preset: the episodes of 5-shot training are three times as large."""
SMALL_SEEDS = {1: 4, 5: 2}
VALIDATIONS = 8
"""The number of validations in every run of a table on CIFAR-FS, however long it is."""
PAPER_STEPS, PAPER_VALIDATIONS = 60_000, 60
"""The same at the preset `paper`, with the same costs."""
LONG_STEPS = 10_000
LONG_VALIDATIONS = 20
LONG_TESTS = 10
IN_TIME = ", in MAML's time"
"""The suffix of labels of rows with as much processor time as MAML's instead of as many meta-steps."""

_Published = tuple[tuple[str, str, float | None, float | None], ...]
"""Label, method, and the published accuracies for 1 shot and for 5."""

_CIFAR: _Published = (
    ("Warp-MAML", "warp-maml", None, None),
    ("MAML", "maml", 58.9, 71.5),
    ("Meta-SGD", "meta-sgd", None, None),
    ("T-Nets", "t-nets", None, None),
    ("CAVIA", "cavia", None, None),
)
_MINI: _Published = (
    ("Warp-MAML", "warp-maml", 52.3, 68.4),
    ("MAML", "maml", 48.7, 63.2),
    ("Reptile", "reptile", 50.0, 66.0),
    ("Meta-SGD", "meta-sgd", 50.5, 64.0),
    ("(M)T-Net", "mt-nets", 51.7, None),
    ("CAVIA", "cavia", 51.8, 65.9),
)
_TIERED: _Published = (("Warp-MAML", "warp-maml", 57.2, 74.1), ("MAML", "maml", 51.7, 70.3))


def lengths(steps: int, validations: int, cost: float = 1.0) -> dict[str, int]:
    """Return the settings of a run that takes as long as `steps` meta-steps of MAML, where one of its meta-steps costs
    `cost` of MAML's: how many it has, and how many lie between validations, the last of which is at its end."""
    every = max(round(steps / cost / validations), 1)
    return {"meta_steps": validations * every, "validate_every": every}


def _at_paper(method: str) -> dict[str, int]:
    return {"filters": PUBLISHED_FILTERS[method]} if method in PUBLISHED_FILTERS else {}


def _cifar(label: str, method: str, paper: float | None, shots: int, *, in_time: bool) -> Row:
    cost = COST[shots][method] if in_time else 1.0
    at = {
        "small": lengths(SMALL_STEPS[shots], VALIDATIONS, cost),
        "paper": {**lengths(PAPER_STEPS, PAPER_VALIDATIONS, cost), **_at_paper(method)},
    }
    settings = {"method": method, "data": "cifar-fs", "shots": shots}
    return Row(label + IN_TIME if in_time else label, settings, paper, at=at)


def _cifar_table(place: int, shots: int) -> RunTable:
    equal_steps = [_cifar(label, method, papers[place], shots, in_time=False) for label, method, *papers in _CIFAR]
    # A method whose meta-steps cost as much as MAML's needs only one row for both.
    equal_time = [
        _cifar(label, method, None, shots, in_time=True) for label, method, *_ in _CIFAR if COST[shots][method] != 1.0
    ]
    return RunTable(
        f"few-shot-cifar-{shots}shot",
        f"Accuracy on test episodes, cifar-fs, 5-way {shots}-shot",
        NAME,
        (*equal_steps, *equal_time),
        seeds=SMALL_SEEDS[shots],
        preset="small",
    )


def _imagenet_tables(short: str, data: str, published: _Published) -> list[RunTable]:
    def row(label: str, method: str, paper: float | None, shots: int) -> Row:
        settings = {"method": method, "data": data, "shots": shots}
        return Row(label, settings, paper, at={"paper": _at_paper(method)})

    return [
        RunTable(
            f"few-shot-{short}-{shots}shot",
            f"Accuracy on test episodes, {data}, 5-way {shots}-shot",
            NAME,
            tuple(row(label, method, papers[place], shots) for label, method, *papers in published),
            seeds=1,
        )
        for place, shots in enumerate((1, 5))
    ]


def _long(label: str, method: str, *, in_time: bool = False) -> Row:
    length = lengths(LONG_STEPS, LONG_VALIDATIONS, COST[1][method] if in_time else 1.0)
    curve = {"test_curve_every": length["meta_steps"] // LONG_TESTS}
    return Row(label + IN_TIME if in_time else label, {"method": method, **length, **curve})


LONG = RunTable(
    "few-shot-cifar-long",
    f"Accuracy on test episodes, cifar-fs, 5-way 1-shot, after {LONG_STEPS} meta-steps and on the way",
    NAME,
    (_long("Warp-MAML", "warp-maml"), _long("MAML", "maml"), _long("Warp-MAML", "warp-maml", in_time=True)),
    seeds=2,
    preset="small",
)
"""Shows whether the lead of a method lasts; the test episodes of the curve select nothing."""

STEP_SIZES = (0.005, 0.015, 0.05, 0.15, 0.5, 1.5)
CONTEXT_STEP_SIZES = (5.0, 15.0, 50.0, 150.0, 500.0, 1500.0)
"""CAVIA's context starts at 0 and takes far larger steps than weights do. In a first grid, up to 150, the largest value
won."""
_SHORT: dict[str, Any] = {
    "meta_steps": 500, "validate_every": 500, "split": "validation", "test_episodes": 300,
}  # fmt: skip
PROBES = RunTable(
    "few-shot-steps",
    "Step sizes: accuracy on validation episodes after 500 meta-steps, cifar-fs, 5-way 1-shot",
    NAME,
    tuple(
        Row(f"{label}, α = {alpha:g}", {"method": method, **_SHORT, "inner_lr": alpha})
        for label, method, *_ in _CIFAR
        for alpha in (CONTEXT_STEP_SIZES if method == "cavia" else STEP_SIZES)
    ),
    seeds=1,
    preset="small",
    search=True,
)
"""The search that chose the step sizes of `small`, with equally many trials for each method of the CIFAR-FS tables."""

TABLES: tuple[RunTable, ...] = (
    *(_cifar_table(place, shots) for place, shots in enumerate((1, 5))),
    LONG,
    *_imagenet_tables("mini", "mini-imagenet", _MINI),
    *_imagenet_tables("tiered", "tiered-imagenet", _TIERED),
    PROBES,
)


DECLARATION = Declaration(
    name=NAME,
    section="§4.1, App. H",
    summary="few-shot classification, 5 steps",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
    spaces=SPACES,
    searched=dict.fromkeys(PRESETS, _SEARCHED),
)

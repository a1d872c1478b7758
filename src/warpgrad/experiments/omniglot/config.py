"""The settings of the multi-shot alphabets experiment (App. E-G), and the paper's values of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    from warpgrad.data.tasks.alphabets import AlphabetProtocol

METHODS = ("warp-leap", "leap", "reptile", "fomaml", "maml", "finetuning", "sgd", "kfac")
SCRATCH = ("sgd", "kfac")
"""Methods without meta-training, which start from random weights."""


@dataclass(frozen=True)
class OmniglotConfig(Config):
    """Settings; the defaults are the paper's or, where it is silent, those of the code published with it."""

    method: str = "warp-leap"
    data: str | None = None
    """omniglot, drawn, or the folder of a prepared data set; by default Omniglot if it is prepared, else drawn."""
    tasks: PositiveInt = 25
    """The number of alphabets to meta-train on."""
    held_out: PositiveInt = 10
    """The number of alphabets to test on; which ones depends on the seed alone."""
    characters: PositiveInt = 20
    """The number of characters to tell apart in a task."""
    train_drawings: PositiveInt = 15
    """The number of drawings of each character to adapt to."""
    test_drawings: PositiveInt = 5
    """The number of drawings of each character to test on."""
    filters: PositiveInt = 64
    """The number of channels of each of the four blocks."""
    batch_size: PositiveInt = 128
    """The batch size of meta-training. The paper does not state it. It follows Leap, whose program uses 20; the program
    published with the paper uses 128."""
    meta_batch: PositiveInt = 20
    """The number of tasks in each meta-step."""
    meta_drawings: int = 0
    """The number of training drawings of each character for the meta-loss alone; with 0, both losses use all of
    them."""
    steps: PositiveInt = 100
    """K, the number of adaptation steps in meta-training."""
    maml_steps: PositiveInt = 5
    """K in the meta-training of MAML, whose memory grows with it."""
    inner_lr: PositiveFloat = 0.1
    """α, the step size of adaptation."""
    momentum: float = 0.0
    """The momentum of adaptation; its buffer is replayed together with θ."""
    learned_alpha: bool = False
    """Meta-learn α, a single number that starts at `inner_lr`."""
    alpha_lr: PositiveFloat = 0.001
    """The meta step size of a learned α."""
    alpha_clip: PositiveFloat = 0.001
    """The bound on the meta-gradient of a learned α."""
    warp: str = "conv3x3"
    """The architecture of the warp-layers, one of the names in warpgrad.layers.OMNIGLOT_WARPS."""
    warp_init: Literal["own", "scaled", "identity"] = "own"
    """Start warp-layers at random weights, at random weights scaled so that activations keep their size (see
    `warpgrad.layers.keep_variance_`), or as the identity map where they can be."""
    theta0: Literal["learned", "random"] = "learned"
    """Meta-learn the initialisation, or keep its random weights (App. G)."""
    objective: Literal["exact", "approximate"] = "exact"
    """The objective of φ: exact (Eq. 11) or approximate (Eq. 12)."""
    algorithm: Literal["offline", "online"] = "offline"
    """The algorithm that learns the warp: Algorithm 2 (offline) or Algorithm 1 (online)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether an update of φ takes the mean or, as Algorithm 1 is printed, the sum over its (task, step) points. With
    η = 1 they are the same."""
    samples: int | None = 1
    """η, the number of points per update of φ in Algorithm 2; None for all."""
    share: Annotated[float, Bound("it must be above 0 and at most 1", above=0, most=1)] = 1.0
    """The share of the points that Algorithm 2 replays in each meta-step, drawn at random; the paper uses all, 1."""
    meta_optimiser: Literal["sgd", "adam"] = "sgd"
    """The meta-optimiser of φ."""
    meta_lr: PositiveFloat = 0.1
    """The meta step size of φ."""
    theta0_lr: PositiveFloat | None = None
    """The meta step size of θ0, or of joint training; None is 0.5 for MAML and FOMAML and 0.1 for the others."""
    meta_schedule: Literal["constant", "cosine"] = "constant"
    """The schedule of all meta step sizes; `cosine` decays them to 0 at the last meta-step."""
    averaged_steps: bool = False
    """Finetuning: one step per round on the mean over its tasks, K per meta-step, instead of one per task batch."""
    meta_steps: PositiveInt = 1000
    """The number of meta-steps."""
    validate_every: NonNegativeInt = 20
    """The number of meta-steps between scores on validation alphabets; 0 for no scores. They do not choose the weights,
    which are always the last ones."""
    validation_tasks: PositiveInt = 3
    """The number of validation alphabets, which neither meta-training nor the test uses. They are scored during
    meta-training, and tested on with --split validation."""
    scratch_batch: PositiveInt = 4
    """The factor by which the test batch of SGD and KFAC, which are not meta-trained, is larger."""
    scratch_lr: PositiveFloat = 10.0
    """The factor by which their step size is larger."""
    kfac_damping: float = 0.03
    """The damping λ of KFAC. The paper does not state it; the table omniglot-steps searches it on validation
    alphabets."""
    kfac_clip: float | None = 0.1
    """KFAC's bound on the size of a step, None for no bound; searched by the same table."""
    kfac_fisher: Literal["sampled", "exact", "empirical"] = "sampled"
    """The labels on which KFAC takes its gradients."""
    kfac_estimate_every: int = 1
    """The number of steps between estimates of KFAC's factors."""
    kfac_invert_every: int = 5
    """The number of steps between inversions of KFAC's factors."""
    split: Literal["test", "validation"] = "test"
    """Which alphabets to test on; the validation alphabets are those that meta-training does not use."""
    batch_norm: Literal["corrected", "running", "batch"] = "corrected"
    """What batch-norm uses at test: the task's running statistics, corrected for their initial values or as they are,
    or those of the test batch (`warpgrad.model.normalisation`). Meta-training is the same under all three."""
    test_batch: tuple[int, ...] = (128, 20)
    """The batch sizes of adaptation to held-out alphabets; there is a result for each."""
    test_steps: PositiveInt = 100
    """The number of adaptation steps on a held-out alphabet."""
    test_every: PositiveInt = 5
    """The number of steps between tests, for the learning curve."""

    @property
    def protocol(self) -> AlphabetProtocol:
        from warpgrad.data.tasks.alphabets import AlphabetProtocol  # needs torch

        return AlphabetProtocol(self.characters, self.train_drawings, self.test_drawings, self.held_out)

    @property
    def from_scratch(self) -> bool:
        return self.method in SCRATCH

    def drawings_at(self, test_batch: int) -> int:
        """Return the batch size of this method in the results at `test_batch`."""
        return test_batch * (self.scratch_batch if self.from_scratch else 1)

    @property
    def test_lr(self) -> float:
        return self.inner_lr * (self.scratch_lr if self.from_scratch else 1.0)

    @property
    def outer_lr(self) -> float:
        """The meta step size of θ0: the given one, or the method's default."""
        if self.theta0_lr is not None:
            return self.theta0_lr
        return 0.5 if self.method in ("maml", "fomaml") else 0.1


_SHORT = OmniglotConfig(
    preset="small", filters=32, batch_size=20, meta_batch=5, share=0.2, warp_init="scaled", meta_steps=40
)

PRESETS: Mapping[str, OmniglotConfig] = MappingProxyType(
    {
        "paper": OmniglotConfig(),
        "medium": replace(_SHORT, preset="medium", filters=64, meta_steps=150),
        "small": _SHORT,
        "demo": OmniglotConfig(
            preset="demo", data="drawn", filters=16, batch_size=20, meta_batch=3, warp_init="scaled", meta_steps=24,
            validate_every=0, held_out=5, test_batch=(20,),
        ),
    }
)  # fmt: skip
"""`medium`: the paper's network and protocol with Leap's batch, five tasks per meta-step, a fifth of the points
replayed, warps scaled to the size of their inputs, and as many meta-steps as one core takes in an hour and a half.
`small`: the same at half the width, shorter. `demo`: minutes, on drawn alphabets."""

_SEARCHED: Mapping[str, Mapping[str, float]] = {
    "warp-leap": {"meta_lr": 0.03}, "reptile": {"theta0_lr": 1.0}, "kfac": {"kfac_damping": 0.01},
}  # fmt: skip
"""The settings that the table `omniglot-steps` chose, where they are not the published ones; for shorter presets."""
RANDOM_STEP = 1.0
"""The step size that it chose for SGD from random weights at the batch of the meta-trained methods."""

COSTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "paper": {
            "leap": 1.0, "reptile": 0.95, "fomaml": 1.06, "maml": 0.15, "finetuning": 0.97,
            "warp-leap": 6.37, "two-layer": 14.05, "approximate": 3.86,
        },
        "medium": {
            "leap": 1.0, "reptile": 0.92, "fomaml": 0.96, "maml": 0.16, "finetuning": 1.02,
            "warp-leap": 2.58, "two-layer": 5.6, "approximate": 1.98,
        },
        "small": {
            "leap": 1.0, "reptile": 0.92, "fomaml": 0.95, "maml": 0.15, "finetuning": 1.09,
            "warp-leap": 2.35, "two-layer": 4.55, "approximate": 1.8,
        },
        "demo": {
            "leap": 1.0, "reptile": 0.89, "fomaml": 0.92, "maml": 0.14, "finetuning": 1.14,
            "warp-leap": 5.77, "two-layer": 10.03, "approximate": 3.49,
        },
    }
)  # fmt: skip
"""Preset -> what is meta-trained -> processor time of a meta-step, relative to Leap's; the last two are Warp-Leap with
the two-layer warp and with the approximate objective. Measured once, by `benchmarks/meta_step_cost.py` on a quiet
machine, and fixed here: meta-steps that depended on the clock could not be repeated."""


def equal_time(preset: str, what: str, meta_steps: int | None = None) -> int:
    """Return the number of meta-steps that take the processor time of `meta_steps`, or the preset's, of Warp-Leap."""
    costs = COSTS[preset]
    return round((meta_steps or PRESETS[preset].meta_steps) * costs["warp-leap"] / costs[what])


NAME = "omniglot"
_ON_VALIDATION: Mapping[str, Any] = {"split": "validation", "validation_tasks": 5}
_META_STEPS = 20
"""Meta-steps of Warp-Leap in the search for step sizes; the others take as much processor time. After ten, accuracies
hardly depended on φ's step size."""

_SETTINGS = {
    "inner_lr": "α", "meta_lr": "meta step", "theta0_lr": "step of θ0", "kfac_damping": "damping", "kfac_clip": "bound",
}  # fmt: skip
_STEP_SIZES = (0.03, 0.1, 0.3, 1.0)
_SCRATCH_STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def _trials(
    label: str, method: str, centre: Mapping[str, float], tried: Mapping[str, tuple[float, ...]], **settings: Any
) -> list[Row]:
    """Vary one setting at a time, with the others at the centre, which is the published value if there is one."""
    if method not in SCRATCH:
        settings = {**settings, "meta_steps": equal_time("small", method, _META_STEPS), "validate_every": 0}
    changes = [centre] + [
        {**centre, name: value} for name, values in tried.items() for value in values if value != centre[name]
    ]
    return [
        Row(
            ", ".join([label, *(f"{_SETTINGS[name]} {value:g}" for name, value in change.items())]),
            {"method": method, **_ON_VALIDATION, **settings, **change},
        )
        for change in changes
    ]


def _initialisation(label: str, method: str, published: float, *outer: float) -> list[Row]:
    """Return trials of θ0's step size around the published one, which was for longer runs, and around the best one."""
    return _trials(
        label, method, {"inner_lr": 0.1, "theta0_lr": published}, {"inner_lr": _STEP_SIZES, "theta0_lr": outer}
    )


STEPS = RunTable(
    "omniglot-steps",
    "Step sizes of every method, seven trials each, on validation alphabets",
    NAME,
    (
        *_trials(
            "Warp-Leap",
            "warp-leap",
            {"inner_lr": 0.1, "meta_lr": 0.1},
            {"inner_lr": _STEP_SIZES, "meta_lr": (0.01, 0.03, 0.1, 0.3)},
        ),
        *_initialisation("Leap", "leap", 0.1, *_STEP_SIZES),
        *_initialisation("Reptile", "reptile", 0.1, 0.1, 0.3, 1.0, 3.0),
        *_initialisation("FOMAML", "fomaml", 0.5, 0.15, 0.5, 1.5, 5.0),
        *_initialisation("MAML", "maml", 0.5, 0.05, 0.15, 0.5, 1.5),
        *_initialisation("Finetuning", "finetuning", 0.1, *_STEP_SIZES),
        *_trials("SGD", "sgd", {"inner_lr": 0.1}, {"inner_lr": _SCRATCH_STEP_SIZES}),
        *_trials(
            "KFAC",
            "kfac",
            {"kfac_damping": 0.03, "kfac_clip": 0.1},
            {"kfac_damping": (0.003, 0.01, 0.03, 0.1), "kfac_clip": (0.03, 0.1, 0.3, 1.0)},
        ),
        *_trials(
            "Random θ0",
            "sgd",
            {"inner_lr": 0.1},
            {"inner_lr": _SCRATCH_STEP_SIZES},
            scratch_batch=1,
            scratch_lr=1.0,
        ),
    ),
    seeds=1,
    preset="small",
    search=True,
)
"""SGD and KFAC take ten times the α named here, as in the paper; the paper names neither damping nor bound of KFAC.
Grids that were first won at an edge were shifted: φ's step size of Warp-Leap, θ0's of Reptile, KFAC's damping."""

_STEP_SIZE = FloatRange(0.01, 1.0, log=True)
_FILTERS = Choices((16, 32, 64, 128))
_ADAPTATION: Mapping[str, Space] = {
    "inner_lr": _STEP_SIZE,
    "momentum": Choices((0.0, 0.5, 0.9)),
    "filters": _FILTERS,
}
_INITIALISATION: Mapping[str, Space] = {**_ADAPTATION, "theta0_lr": _STEP_SIZE}
SPACES: Spaces = {
    "warp-leap": {**_INITIALISATION, "meta_lr": _STEP_SIZE},
    **dict.fromkeys(("leap", "reptile", "fomaml", "maml", "finetuning"), _INITIALISATION),
    "sgd": _ADAPTATION,
    "kfac": {
        "inner_lr": _STEP_SIZE,
        "filters": _FILTERS,
        "kfac_damping": FloatRange(1e-3, 1.0, log=True),
        "kfac_clip": FloatRange(1e-2, 1.0, log=True),
    },
}
"""The search spaces of `warpgrad sweep`."""


def _recipe(label: str, meta_steps: int = 80, **settings: Any) -> Row:
    own = {"warp_init": "scaled", "share": 0.2, "meta_steps": meta_steps}
    return Row(label, {"method": "warp-leap", **_ON_VALIDATION, **own, **settings})


RECIPE = RunTable(
    "omniglot-recipe",
    "What Warp-Leap learns most from in equal processor time, on validation alphabets",
    NAME,
    (
        _recipe("scaled start, a fifth replayed, SGD (default)"),
        _recipe("own start", warp_init="own"),
        _recipe("identity start", warp_init="identity"),
        _recipe("a tenth replayed", 113, share=0.1),
        _recipe("half replayed", 45, share=0.5),
        _recipe("all replayed", 30, share=1.0),
        _recipe("cosine schedule", meta_schedule="cosine"),
        _recipe("Adam 0.001", meta_optimiser="adam", meta_lr=0.001),
        _recipe("Adam 0.0003", meta_optimiser="adam", meta_lr=0.0003),
        _recipe("Adam 0.001, cosine schedule", meta_optimiser="adam", meta_lr=0.001, meta_schedule="cosine"),
        _recipe("approximate objective", 102, objective="approximate"),
        _recipe("approximate objective, half replayed", 60, objective="approximate", share=0.5),
        _recipe("batch 64", 30, batch_size=64),
        _recipe("identity start, cosine schedule", warp_init="identity", meta_schedule="cosine"),
        _recipe("identity start, a tenth replayed", 113, warp_init="identity", share=0.1),
        _recipe("identity start, Adam 0.001", warp_init="identity", meta_optimiser="adam", meta_lr=0.001),
    ),
    seeds=1,
    preset="small",
)
"""Meta-steps are such that all rows take about the processor time of the first, by `benchmarks/meta_step_cost.py`; the
scores during meta-training, against processor time, show the rest."""


SEEDS = 10
ABLATION_SEEDS = 4
TWO_LAYER = "two-layer+bn+res"


def _row(
    label: str,
    method: str,
    paper: float | None = None,
    *,
    small: int = 1,
    medium: int | None = None,
    at: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    presets: tuple[str, ...] = (),
    **settings: Any,
) -> Row:
    """Make a row with `small` and `medium` seeds at the presets of these names; `medium` defaults to `small`."""
    seeds = {"small": small, "medium": medium or small}
    return Row(label, {"method": method, **settings}, paper, seeds, at, presets)


def _warp(label: str, paper: float | None = None, **settings: Any) -> Row:
    return _row(label, "warp-leap", paper, **settings)


def _as_long(row: Row, what: str, *presets: str) -> Row:
    """Return the row with as many meta-steps as fit into the processor time of Warp-Leap, at some presets."""
    return dataclasses.replace(row, at={preset: {"meta_steps": equal_time(preset, what)} for preset in presets})


def _with_equal_time(row: Row, what: str) -> tuple[Row, Row]:
    """Return the row with as many meta-steps as Warp-Leap, as in the paper, and one with as much processor time."""
    label = f"{row.label}, equal processor time"
    return row, dataclasses.replace(_as_long(row, what, *PRESETS), label=label, paper=None)


_LEAP = _row("Leap", "leap", 74.8, small=4)

MAIN = RunTable(
    "omniglot",
    "Accuracy after 100 steps on held-out alphabets, 25 meta-training tasks",
    NAME,
    (
        _warp("Warp-Leap", 83.8, small=4),
        *_with_equal_time(_LEAP, "leap"),
        *_with_equal_time(_row("Finetuning", "finetuning", 76.4, small=4), "finetuning"),
        *_with_equal_time(_row("Reptile", "reptile", 70.8, small=2), "reptile"),
        *_with_equal_time(_row("MAML", "maml", 56.7, small=2), "maml"),
        _row("KFAC", "kfac", 56.0, small=2),
        _row("SGD", "sgd", 51.0, small=4),
        # What the batch and step size of the meta-trained methods give without any meta-training.
        _row("Random θ0, no warp", "sgd", small=4, scratch_batch=1, scratch_lr=1.0),
        _row(
            "Random θ0, no warp, step size searched",
            "sgd",
            small=4,
            scratch_batch=1,
            scratch_lr=1.0,
            inner_lr=RANDOM_STEP,
        ),
        _warp("Warp-Leap, two-layer warp", 88.0, small=2, warp=TWO_LAYER, at={"medium": {"meta_steps": 110}}),
        _warp(
            "Warp-Leap, every point replayed, layers' own start",
            at={"medium": {"meta_steps": 115}},
            presets=("medium", "small"),
            share=1.0,
            warp_init="own",
        ),
    ),
    seeds=SEEDS,
)
"""The two-layer warp and the row at full replay cost more: at `medium` their meta-steps are what two and three hours of
a core take, where the others have one and a half."""

_TASKS = (1, 3, 5, 10, 15, 20, 25)
_TASK_ROWS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("Warp-Leap", "warp-leap", (49.5, 68.8, 75.0, 81.2, 82.7, 82.0, 83.8)),
    ("Leap", "leap", (37.6, 53.4, 59.5, 67.4, 70.0, 73.3, 74.8)),
    ("Finetuning", "finetuning", (53.8, 64.6, 67.7, 71.3, 73.5, 75.4, 76.4)),
    ("Reptile", "reptile", (40.4, 53.1, 58.3, 65.0, 66.6, 69.4, 70.8)),
    ("MAML", "maml", (40.0, 48.6, 51.6, 54.1, 54.8, 56.6, 56.7)),
)


def _tasks_row(label: str, method: str, count: int, paper: float) -> Row:
    slow = method in ("reptile", "maml")
    seeds = 1 if slow and count not in (1, 5, 25) else 2
    row = _row(f"{label}, {count} {'task' if count == 1 else 'tasks'}", method, paper, small=seeds, tasks=count)
    return _as_long(row, method, "medium", "small") if slow else row


TASKS = RunTable(
    "omniglot-tasks",
    "Accuracy against the number of meta-training tasks",
    NAME,
    (
        *(
            _tasks_row(label, method, count, paper)
            for label, method, papers in _TASK_ROWS
            for count, paper in zip(_TASKS, papers, strict=True)
        ),
        _row("KFAC", "kfac", 56.0, small=2),
        _row("SGD", "sgd", 51.0, small=2),
    ),
    seeds=SEEDS,
)
"""At the shorter presets Reptile and MAML are meta-trained for the processor time of Warp-Leap: in as many meta-steps
they would hardly leave their random start. KFAC and SGD see no meta-training tasks."""

ABLATION = RunTable(
    "omniglot-ablation",
    "Ablation of warp-layers, objective and meta-training, 25 tasks",
    NAME,
    (
        _warp("3×3 conv, offline, exact (default)", 84.4, small=4),
        *_with_equal_time(dataclasses.replace(_LEAP, label="no warp (Leap)"), "leap"),
        *_with_equal_time(_warp("approximate objective", 83.1, small=4, objective="approximate"), "approximate"),
        _warp("online", 76.3, small=4, algorithm="online", reduction="sum", meta_lr=0.001, share=1.0),
        _warp("learned α", 83.1, small=2, learned_alpha=True),
        _warp("learned α, free to move", 83.1, small=2, learned_alpha=True, alpha_lr=0.1, alpha_clip=0.003),
        _warp("scaling", 77.5, small=2, warp="scaling"),
        _warp("1×1 conv", 79.4, small=2, warp="conv1x1"),
        _warp("3×3 conv + ReLU", 83.4, small=4, warp="conv3x3+relu"),
        _warp("3×3 conv + BN", 84.7, small=2, warp="conv3x3+bn"),
        _warp("3×3 conv + BN + ReLU", 85.0, small=2, warp="conv3x3+bn+relu"),
        _warp("3×3 conv + BN + Res + ReLU", 86.3, small=2, warp="conv3x3+bn+res+relu"),
        *_with_equal_time(_warp("2-layer + BN + Res", 88.0, small=4, warp=TWO_LAYER), "two-layer"),
        _warp("2-layer + BN + Res + FiLM", 88.1, small=2, warp=f"{TWO_LAYER}+film"),
        _warp("held-out drawings for the meta-loss", small=2, meta_drawings=5),
        _warp("3×3 conv, begun as the identity (ours)", small=2, warp_init="identity"),
    ),
    seeds=ABLATION_SEEDS,
)
"""Online: the printed step size of .001 belongs to the printed sum over tasks and steps. Learned α: under the printed
clip and step size of .001 it moves by at most 1e-6 an update: by up to 2 in the paper's two million updates, by no more
than 0.004 in the 4000 of `small`; the row beside it can move there by up to 1.2."""

ETA = RunTable(
    "omniglot-eta",
    "Points per update of the warp in offline meta-training",
    NAME,
    (
        _warp("η = 1", 84.4, small=4),
        _warp("η = 20", samples=20, reduction="sum"),
        _warp("η = all", samples=None, reduction="sum"),
    ),
    seeds=ABLATION_SEEDS,
)
"""With the sum over its points, as printed, an update moves φ to first order as far as that many with η = 1."""

_NATURAL: Mapping[str, Any] = {
    "theta0": "random", "batch_size": 200, "test_batch": (200,), "inner_lr": 1.0, "scratch_batch": 1, "scratch_lr": 1.0,
}  # fmt: skip
_NATURAL_SHORTER: Mapping[str, Any] = {"meta_batch": 2, "meta_steps": 100}


def _natural(label: str, method: str, paper: float, *, small: int, **settings: Any) -> Row:
    meta_trained = method == "warp-leap"
    at = dict.fromkeys(("medium", "small"), _NATURAL_SHORTER) if meta_trained else {}
    return _row(label, method, paper, small=small, at=at, **_NATURAL, **settings)


NATURAL = RunTable(
    "omniglot-natural",
    "From one random initialisation: warps against a natural gradient",
    NAME,
    (
        _natural("SGD", "sgd", 40.1, small=4),
        _natural("KFAC", "kfac", 58.2, small=4),
        _natural("linear warp", "warp-leap", 68.0, small=2),
        _natural("non-linear warp", "warp-leap", 81.3, small=2, warp="two-layer+bn+res+relu"),
    ),
    seeds=ABLATION_SEEDS,
)
"""Batch 200 and step size 1.0 at every preset, as printed: at smaller batches such steps cost SGD tens of points. The
shorter presets shrink the number of tasks in a meta-step instead, and take more of them: θ0 is not learned, so it is
the updates of φ that count, 4000 of them as in the other tables at `small`."""

DEMO = RunTable(
    "omniglot-demo",
    "Accuracy after 100 steps on held-out drawn alphabets",
    NAME,
    (_warp("Warp-Leap"), _row("Leap", "leap"), _row("SGD", "sgd")),
    seeds=2,
    preset="demo",
)

ZOO = RunTable(
    "omniglot-zoo",
    "Accuracy after 100 steps on held-out alphabets, of the small pretrained warp",
    NAME,
    (_warp("Warp-Leap", meta_steps=80),),
    seeds=1,
    preset="small",
)
"""Where `omniglot-warp-leap-32` of the zoo comes from: twice the meta-steps of `small`, minutes on one core."""

TABLES = (MAIN, TASKS, ABLATION, ETA, NATURAL, STEPS, RECIPE, DEMO, ZOO)


DECLARATION = Declaration(
    name="omniglot",
    section="App. E-G",
    summary="multi-shot classification of alphabets, 100 steps",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
    spaces=SPACES,
    searched=dict.fromkeys(("medium", "small"), _SEARCHED),
)

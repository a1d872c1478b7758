"""The settings of multi-shot image classification (§4.2, App. H), and the paper's values of them."""

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
    from warpgrad.data.tasks.many_shot import ManyShotShape

METHODS = ("warp-leap", "leap", "reptile", "sgd")
_SEARCHED: Mapping[str, Mapping[str, float]] = {
    method: {"inner_lr": alpha}
    for method, alpha in (("warp-leap", 0.02), ("leap", 0.006), ("reptile", 0.002), ("sgd", 0.006))
}
"""The step sizes that the table `multi-shot-steps` chose."""
POOLS = 5
"""The number of blocks with pooling, from the first on (App. H)."""


@dataclass(frozen=True)
class MultiShotConfig(Config):
    """Settings; the defaults are the paper's. It does not state step sizes, how warps are initialised, the schedule of
    tests and validations, or the size of the large batch of training from scratch: those are ours."""

    method: str = "warp-leap"
    data: str = "tiered-imagenet"
    """A prepared data set with splits, by its name or its folder: tiered-imagenet, fc100, cifar-fs, mini-imagenet."""
    ways: int = 10
    """N, the number of classes of a task."""
    shots: int = 640
    """The number of training images of each class, or as many as it has besides the test images."""
    test_images: int = 50
    """L, the number of test images of each class."""
    meta_images: int = 0
    """The number of training images of each class for the meta-loss alone; with 0, both losses use all of them."""
    widths: tuple[int, ...] = (64, 64, 160, 160, 256, 256)
    """The number of channels of each block; the first five blocks pool."""
    warp_init: Literal["identity", "own"] = "identity"
    """Start the warp convolutions as the identity map (identity), or at random weights (own)."""
    batch_size: int = 64
    """The number of images in a batch."""
    steps: PositiveInt = 100
    """K, the number of adaptation steps in meta-training."""
    inner_lr: PositiveFloat = 0.02
    """α, the step size of adaptation; each method has its own default, chosen by the table `multi-shot-steps`."""
    momentum: Annotated[float, Bound("it must be at least 0 and below 1", least=0, below=1)] = 0.9
    """The momentum of adaptation."""
    objective: Literal["exact", "approximate"] = "exact"
    """The objective of φ: exact (Eq. 11) or approximate (Eq. 12)."""
    meta_batch: PositiveInt = 5
    """The number of tasks in each meta-step."""
    meta_steps: PositiveInt = 2000
    """The number of meta-steps."""
    meta_lr: PositiveFloat = 0.001
    """Adam's step size for φ."""
    theta0_lr: PositiveFloat = 0.001
    """Adam's step size for θ0."""
    meta_clip: Annotated[float, Bound("it must be greater than 0, or None for no bound", above=0)] | None = None
    """The bound on the norms of the meta-gradients of φ and of θ0; None for no bound."""
    validate_every: PositiveInt = 100
    """The number of meta-steps between validations of K steps; the weights with the best validation AUC are kept."""
    validation_tasks: PositiveInt = 20
    """The number of tasks of a validation."""
    patience: Annotated[int, Bound("it must be at least 1, or None to run all meta-steps", least=1)] | None = None
    """The number of validations without a new best that end the run; None runs all meta-steps."""
    scratch_batch: PositiveInt = 4
    """The factor by which the batch of sgd, which is not meta-trained, is larger."""
    test_curve_every: NonNegativeInt = 100
    """The number of meta-steps between tests of K steps during meta-training, which choose nothing; 0 for no such
    tests."""
    test_curve_tasks: PositiveInt = 20
    """The number of tasks of each of these tests: the first ones of the final test."""
    split: Literal["test", "validation"] = "test"
    """Whether to test on the test classes or on the validation classes."""
    test_tasks: PositiveInt = 100
    """The number of tasks of the final test, the same ones for every method and seed."""
    headline_steps: PositiveInt = 100
    """The number of adaptation steps after which the accuracy of the table is taken."""
    test_steps: PositiveInt = 640
    """The number of adaptation steps at test."""
    test_every: PositiveInt = 10
    """The number of steps between tests, for the learning curve."""

    @property
    def from_scratch(self) -> bool:
        return self.method == "sgd"

    @property
    def train_shape(self) -> ManyShotShape:
        from warpgrad.data.tasks.many_shot import ManyShotShape  # needs torch

        return ManyShotShape(self.ways, self.shots, self.test_images, self.batch_size, self.meta_images)

    @property
    def test_shape(self) -> ManyShotShape:
        """The shape of held-out tasks, which are adapted to with every training image."""
        from warpgrad.data.tasks.many_shot import ManyShotShape  # needs torch

        batch = self.batch_size * (self.scratch_batch if self.from_scratch else 1)
        return ManyShotShape(self.ways, self.shots, self.test_images, batch)


PRESETS: Mapping[str, MultiShotConfig] = MappingProxyType(
    {
        "paper": MultiShotConfig(),
        "small": MultiShotConfig(
            preset="small",
            data="fc100",
            shots=500,
            widths=(16, 16, 32, 32, 48, 48),
            batch_size=32,
            steps=30,
            meta_batch=2,
            meta_steps=400,
            validate_every=50,
            validation_tasks=10,
            test_curve_every=50,
            test_curve_tasks=10,
            test_tasks=20,
            headline_steps=30,
            test_steps=150,
            test_every=5,
        ),
    }
)
"""`small`: FC100 (32×32), 500 of the 600 images of a class to adapt to and 50 others to test on, a quarter of the
width or less, and fewer and shorter meta-steps; tested at K = 30 steps and, five times as far, at 150."""


_ADAM = FloatRange(1e-4, 1e-2, log=True)
_ADAPTATION: Mapping[str, Space] = {
    "inner_lr": FloatRange(0.002, 0.5, log=True),
    "momentum": Choices((0.0, 0.5, 0.9, 0.95)),
    "widths": Choices(((16, 16, 32, 32, 48, 48), (32, 32, 80, 80, 128, 128), (64, 64, 160, 160, 256, 256))),
}
SPACES: Spaces = {
    "warp-leap": {**_ADAPTATION, "theta0_lr": _ADAM, "meta_lr": _ADAM},
    **{method: {**_ADAPTATION, "theta0_lr": _ADAM} for method in ("leap", "reptile")},
    "sgd": _ADAPTATION,
}
"""The search spaces of `warpgrad sweep`."""


NAME = "multi-shot"
SEEDS = 4
"""The number of seeds; the paper does not state how many runs its figures are means of."""

_PUBLISHED = (
    ("Warp-Leap", "warp-leap", 80.4),
    ("Leap", "leap", 73.9),
    ("Reptile", "reptile", 76.5),
    ("SGD", "sgd", 58.1),
)
"""Label, method, and the paper's accuracy after 100 steps."""

STEP_SIZES = (0.0006, 0.002, 0.006, 0.02, 0.06)
"""In a first grid, 0.002 to 0.2, the smallest value won for Reptile."""
_ON_VALIDATION: dict[str, Any] = {"split": "validation", "test_tasks": 10, "test_curve_every": 0}
_SHORT: dict[str, Any] = {"meta_steps": 100, "validate_every": 100}
"""The meta-steps of a trial: a quarter of those of `small`, so that the search costs less than the runs."""
PROBES = RunTable(
    "multi-shot-steps",
    "Step sizes: AUC on validation tasks, after 100 meta-steps for the methods that are meta-trained",
    NAME,
    tuple(
        Row(
            f"{label}, α = {alpha:g}",
            {"method": method, "inner_lr": alpha, **_ON_VALIDATION, **({} if method == "sgd" else _SHORT)},
        )
        for label, method, _ in _PUBLISHED
        for alpha in STEP_SIZES
    ),
    seeds=1,
    preset="small",
    search=True,
)
"""The search that chose the step sizes of the preset `small`, with equally many trials for each method."""

TABLES = (
    RunTable(
        "multi-shot",
        "Accuracy on held-out tasks of large multi-shot image classification",
        NAME,
        tuple(Row(label, {"method": method}, paper) for label, method, paper in _PUBLISHED),
        seeds=SEEDS,
    ),
    PROBES,
)


DECLARATION = Declaration(
    name=NAME,
    section="§4.2, App. H",
    summary="large multi-shot image classification, tested beyond the steps of meta-training",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
    spaces=SPACES,
    sweep_metric="auc",
    searched=dict.fromkeys(PRESETS, _SEARCHED),
)

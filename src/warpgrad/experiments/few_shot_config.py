"""The settings of the few-shot experiment (§4.1, App. H), and the paper's values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from warpgrad.experiments.base import Config
from warpgrad.experiments.sweep_space import Choices, FloatRange, Space
from warpgrad.tasks.episodes import EpisodeShape

METHODS = (
    "warp-maml", "maml", "fomaml", "anil", "reptile", "meta-sgd", "meta-curvature", "t-nets", "mt-nets", "cavia",
)  # fmt: skip
DATA = ("cifar-fs", "fc100", "mini-imagenet", "tiered-imagenet", "omniglot-fewshot")
TRAIN_SHOTS = {1: 5, 5: 15}
"""App. H: meta-training sees more images of each class than the test."""
_ALPHA: Mapping[str, float] = {"warp-maml": 0.15, "maml": 0.05, "meta-sgd": 0.05, "t-nets": 0.05, "cavia": 5.0}
"""The step size of each method that has one of its own, chosen by the table `few-shot-steps`."""
_USUAL_ALPHA = 0.05
"""That of the methods which the table does not search."""


@dataclass(frozen=True)
class FewShotConfig(Config):
    """Settings; the defaults are the paper's. It states no step sizes, no validation schedule and no start of the
    warps: those are ours."""

    method: str = "warp-maml"
    data: str = "mini-imagenet"
    """cifar-fs, fc100, mini-imagenet, tiered-imagenet, omniglot-fewshot, or the folder of a prepared data set."""
    ways: int = 5
    """N, classes of an episode."""
    shots: int = 1
    """Images of each class to adapt to, in validation and test."""
    train_shots: int | None = None
    """The same in meta-training; None is 5 for 1-shot and 15 for 5-shot tests (App. H), else as many as in the test."""
    query: int = 15
    """L, further images of each class, for the meta-loss and the test."""
    rotations: bool = False
    """Images turned by 90°, 180° and 270° are further classes, in all splits; for omniglot-fewshot."""
    flips: bool = False
    """Mirror images at random in meta-training."""
    filters: int = 128
    """Channels of each of the four blocks."""
    warp_init: Literal["identity", "own"] = "identity"
    """Begin the warp-layers of warp-maml as the identity map, or at their own random weights."""
    context: int = 100
    """Size of CAVIA's context."""
    temperature: float = 0.5
    """Of the masks of mt-nets."""
    batch_norm: Literal["batch", "running"] = "batch"
    """What batch-norm uses at test: the statistics of the query set (batch), or the episode's running ones."""
    steps: int = 5
    """K in meta-training."""
    inner_lr: float | None = None
    """α; None is the method's own, chosen by the table `few-shot-steps`."""
    meta_lr: float = 0.001
    """Adam's step size for φ: warps, T, and what CAVIA and ANIL do not adapt."""
    theta0_lr: float = 0.001
    """Adam's step size for θ0."""
    rule_lr: float = 0.001
    """Adam's step size for what a rule learns: step sizes, curvature factors, masks."""
    meta_clip: float = 10.0
    """Largest norm of the meta-gradient of each of these groups."""
    meta_batch: int = 1
    """Tasks per meta-step."""
    meta_steps: int = 60_000
    """Meta-steps."""
    validate_every: int = 1000
    """Meta-steps between validations; the weights with the best validation accuracy are kept."""
    validation_episodes: int = 600
    """Episodes of a validation."""
    patience: int | None = None
    """Validations without a new best after which the run stops; None goes through all meta-steps."""
    test_curve_every: int = 0
    """Meta-steps between tests on the way, on the first episodes of the final one; they choose nothing. 0: none."""
    test_curve_episodes: int = 600
    """Episodes of each of these tests."""
    split: Literal["test", "validation"] = "test"
    """Which classes to test on."""
    test_episodes: int = 600
    """Episodes of the test, the same for every method and seed."""
    test_steps: int = 5
    """Adaptation steps at test; validation takes K."""

    @property
    def test_shape(self) -> EpisodeShape:
        return EpisodeShape(self.ways, self.shots, self.query)

    @property
    def train_shape(self) -> EpisodeShape:
        shots = TRAIN_SHOTS.get(self.shots, self.shots) if self.train_shots is None else self.train_shots
        return EpisodeShape(self.ways, shots, self.query)

    @property
    def alpha(self) -> float:
        """The step size of adaptation that is used."""
        if self.inner_lr is not None:
            return self.inner_lr
        return _ALPHA.get(self.method, _USUAL_ALPHA)


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
SPACES: Mapping[str, Mapping[str, Space]] = {
    **dict.fromkeys(("maml", "fomaml", "reptile"), _THETA0),
    **{method: {**_THETA0, "meta_lr": _META} for method in ("warp-maml", "anil", "t-nets")},
    **{method: {**_THETA0, "rule_lr": _META} for method in ("meta-sgd", "meta-curvature")},
    "mt-nets": {**_THETA0, "meta_lr": _META, "rule_lr": _META},
    "cavia": {
        "inner_lr": FloatRange(0.5, 150.0, log=True),
        "meta_lr": _META,
        "filters": Choices((32, 64, 128, 256, 512)),
    },
}
"""What `warpgrad sweep` chooses from. The paper gives no ranges but 128 filters or fewer; CAVIA's are its authors'."""

"""The settings of the multi-shot alphabets experiment (App. E-G), and the paper's values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from warpgrad.data import AlphabetProtocol
from warpgrad.experiments.base import Config

METHODS = ("warp-leap", "leap", "reptile", "fomaml", "maml", "finetuning", "sgd", "kfac", "kfac-curvlinops")
KFACS = ("kfac", "kfac-curvlinops")
"""KFAC with factors of our own, and with those of the library curvlinops (extra `kfac`): the same but for rounding."""
SCRATCH = ("sgd", *KFACS)
"""Methods without meta-training: they begin at random weights."""


@dataclass(frozen=True)
class OmniglotConfig(Config):
    """Settings; the defaults are the paper's or, where it is silent, those of the programs published with it."""

    method: str = "warp-leap"
    data: str | None = None
    """omniglot, drawn, or the folder of a prepared data set; by default Omniglot if it is prepared, else drawn."""
    tasks: int = 25
    """Alphabets to meta-train on."""
    held_out: int = 10
    """Alphabets to test on; which ones depends on the seed alone."""
    characters: int = 20
    """Ways of each classification."""
    train_drawings: int = 15
    """Drawings of each character to adapt to."""
    test_drawings: int = 5
    """Drawings of each character to test on."""
    filters: int = 64
    """Channels of each of the four blocks."""
    batch_size: int = 128
    """Drawings per batch in meta-training. The paper prints none: it follows Leap, whose program has 20; the program
    published with the paper has 128."""
    meta_batch: int = 20
    """Tasks per meta-step."""
    meta_drawings: int = 0
    """Training drawings of each character that only the meta-loss sees; 0: both losses see all, in other batches."""
    steps: int = 100
    """K in meta-training."""
    maml_steps: int = 5
    """K in meta-training of MAML, whose memory grows with it."""
    inner_lr: float = 0.1
    """α."""
    momentum: float = 0.0
    """Of adaptation; its buffer is replayed along with θ."""
    learned_alpha: bool = False
    """Meta-learn α, one number, from `inner_lr` on."""
    alpha_lr: float = 0.001
    """Meta step size of a learned α."""
    alpha_clip: float = 0.001
    """Largest meta-gradient of a learned α."""
    warp: str = "conv3x3"
    """Architecture of the warp-layers, a name of warpgrad.layers.OMNIGLOT_WARPS."""
    warp_init: Literal["own", "scaled", "identity"] = "own"
    """Begin warp-layers at their own random weights, at these scaled so that activations keep their size (see
    `warpgrad.layers.keep_variance_`), or as the identity map where they can be."""
    theta0: Literal["learned", "random"] = "learned"
    """Meta-learn the initialisation, or keep the random weights it begins with (App. G)."""
    objective: Literal["exact", "approximate"] = "exact"
    """L or L̂."""
    algorithm: Literal["offline", "online"] = "offline"
    """Algorithm 2 or 1, for the warp."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether an update of φ takes the mean or, as Algorithm 1 is printed, the sum over its (task, step) points. With
    η = 1 they are the same."""
    samples: int | None = 1
    """η, points per update of φ in Algorithm 2; None for all."""
    share: float = 1.0
    """Which part of the points Algorithm 2 replays in each meta-step, drawn at random; 1 is the paper's algorithm."""
    meta_optimiser: Literal["sgd", "adam"] = "sgd"
    """Of φ."""
    meta_lr: float = 0.1
    """Meta step size of φ."""
    theta0_lr: float | None = None
    """Meta step size of θ0, or of joint training; None is 0.5 for MAML and FOMAML and 0.1 for the others."""
    meta_schedule: Literal["constant", "cosine"] = "constant"
    """Of all meta step sizes; `cosine` brings them to 0 at the last meta-step."""
    averaged_steps: bool = False
    """Finetuning: one step per round on the mean over its tasks, K per meta-step, instead of one per task batch."""
    meta_steps: int = 1000
    """Meta-steps."""
    validate_every: int = 20
    """Meta-steps between two scores on validation alphabets, which choose nothing: the weights are the last ones. 0 for
    none."""
    validation_tasks: int = 3
    """Validation alphabets, of those that neither meta-training nor the test has: for the scores on the way, and to
    test on with --split validation."""
    scratch_batch: int = 4
    """How many times larger the test batch of SGD and KFAC is, which are not meta-trained."""
    scratch_lr: float = 10.0
    """How many times larger their step size is."""
    kfac_damping: float = 0.03
    """λ of KFAC; the paper does not say. The table omniglot-steps tries others on validation alphabets."""
    kfac_clip: float | None = 0.1
    """KFAC's bound on the size of a step, None for none; tried likewise."""
    kfac_fisher: Literal["sampled", "exact", "empirical"] = "sampled"
    """Over which labels KFAC takes its gradients."""
    kfac_estimate_every: int = 1
    """Steps between estimates of KFAC's factors."""
    kfac_invert_every: int = 5
    """Steps between their inversions."""
    split: Literal["test", "validation"] = "test"
    """Which alphabets to test on; validation is what meta-training leaves over."""
    batch_norm: Literal["corrected", "running", "batch"] = "corrected"
    """What batch-norm uses at test: the task's own running statistics, freed of the values they begin with or as they
    are, or those of the test batch (`warpgrad.normalisation`). Meta-training is the same under all three."""
    test_batch: tuple[int, ...] = (128, 20)
    """Drawings per batch in adaptation to held-out alphabets: there is a result at each."""
    test_steps: int = 100
    """Steps of adaptation on a held-out alphabet."""
    test_every: int = 5
    """Steps between tests, for the learning curve."""

    @property
    def protocol(self) -> AlphabetProtocol:
        return AlphabetProtocol(self.characters, self.train_drawings, self.test_drawings, self.held_out)

    @property
    def from_scratch(self) -> bool:
        return self.method in SCRATCH

    def drawings_at(self, test_batch: int) -> int:
        """The batch of this method in the results at `test_batch`."""
        return test_batch * (self.scratch_batch if self.from_scratch else 1)

    @property
    def test_lr(self) -> float:
        return self.inner_lr * (self.scratch_lr if self.from_scratch else 1.0)

    @property
    def outer_lr(self) -> float:
        """The meta step size of θ0 that is used."""
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
replayed, warps that begin at the size of what they see, and as many meta-steps as a core takes in an hour and a half.
`small`: the same at half the width, shorter. `demo`: minutes, on drawn alphabets."""

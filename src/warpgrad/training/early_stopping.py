"""Early stopping on a validation metric: the settings, and the state of one training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from warpgrad.errors import WarpgradError, choice, integer, require, short_repr


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a validation metric has not improved for `patience` validations; end with the best parameters.

    It holds only settings, so one object may serve any number of trainings.

    A run that has stopped stays as it is when the same call is repeated. If more meta-steps are requested than before,
    it resumes where it stopped, with its best parameters so far remembered and its patience reset.

    Example:
        >>> stopping = wg.EarlyStopping("loss", patience=2)
        >>> watch = stopping.watch()
        >>> [watch.observe({"loss": loss}) for loss in (1.0, 0.5, 0.6, 0.7)], watch.stop
        ([True, True, False, False], True)
    """

    metric: str
    """The name of the metric in what the validation function returns."""
    patience: int
    """How many validations without a new best value end the run."""
    mode: Literal["min", "max"] = "min"
    """Whether smaller (`min`) or larger (`max`) values are better."""

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise WarpgradError(f"metric must be the name of a validation score, not {short_repr(self.metric)}.")
        integer(self.patience, "patience", at_least=1)
        choice(self.mode, "mode", ("min", "max"))

    def watch(self) -> Patience:
        """Start watching the metric for a new training."""
        return Patience(self)


class Patience:
    """The best value that a training has seen, and how many validations it has waited for a better one."""

    def __init__(self, settings: EarlyStopping) -> None:
        self.settings = settings
        self.best = math.nan
        self.waited = 0

    def observe(self, scores: Mapping[str, float]) -> bool:
        """Take the scores of a validation, and return whether they are the best so far."""
        metric = self.settings.metric
        require(
            metric in scores,
            f"early stopping watches '{metric}', but validation returned {', '.join(scores) or 'nothing'}.",
        )
        value = scores[metric]
        better = value < self.best if self.settings.mode == "min" else value > self.best
        if better or (math.isnan(self.best) and not math.isnan(value)):
            self.best, self.waited = value, 0
            return True
        self.waited += 1
        return False

    @property
    def stop(self) -> bool:
        return self.waited >= self.settings.patience

    @property
    def reason(self) -> str:
        """A sentence that says why the training stops."""
        return (
            f"early stopping: {self.settings.metric} has not improved on {self.best:.6g} in {self.waited} validations"
        )

    def renew(self) -> None:
        """Reset the patience; the best value is kept."""
        self.waited = 0

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "settings": asdict(self.settings)}

    def load_state(self, state: Mapping[str, Any]) -> bool:
        """Restore a state that `state()` returned; return whether it is for the same metric, read the same way.

        Checkpoints of earlier versions do not say what they watched; this metric is assumed.
        """
        watched = state.get("settings") or asdict(self.settings)
        if any(watched[name] != getattr(self.settings, name) for name in ("metric", "mode")):
            return False
        self.best, self.waited = state["best"], state["waited"]
        return True

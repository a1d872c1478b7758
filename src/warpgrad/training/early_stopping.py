"""Early stopping on a validation metric: what is watched, and what one training has seen of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from warpgrad.errors import WarpgradError, choice, integer, short_repr


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a validation metric has not improved for `patience` validations; end with the best parameters.

    It holds settings alone, so one object may serve any number of trainings.

    A run that has stopped stays as it is when the same call is repeated. Asked for more meta-steps than before, it goes
    on from where it stopped, with its best parameters so far remembered and its patience renewed.

    Example:
        >>> stopping = wg.EarlyStopping("loss", patience=2)
        >>> watch = stopping.watch()
        >>> [watch.observe({"loss": loss}) for loss in (1.0, 0.5, 0.6, 0.7)], watch.stop
        ([True, True, False, False], True)
    """

    metric: str
    """Name in what the validation function returns."""
    patience: int
    """Validations without a new best before the run stops."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more is better."""

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise WarpgradError(f"metric must be the name of a validation score, not {short_repr(self.metric)}.")
        integer(self.patience, "patience", at_least=1)
        choice(self.mode, "mode", ("min", "max"))

    def watch(self) -> Patience:
        """What a new training sees of the metric: nothing yet."""
        return Patience(self)


class Patience:
    """The best value that one training has seen, and how many validations it has waited for a better one."""

    def __init__(self, settings: EarlyStopping) -> None:
        self.settings = settings
        self.best = math.nan
        self.waited = 0

    def observe(self, scores: Mapping[str, float]) -> bool:
        """Take a validation; whether it is the best so far."""
        metric = self.settings.metric
        if metric not in scores:
            raise WarpgradError(
                f"early stopping watches '{metric}', but validation returned {', '.join(scores) or 'nothing'}."
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
        """Why the training stops, for a person."""
        return (
            f"early stopping: {self.settings.metric} has not improved on {self.best:.6g} in {self.waited} validations"
        )

    def renew(self) -> None:
        """Wait anew, for a value better than the best so far."""
        self.waited = 0

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "settings": asdict(self.settings)}

    def load_state(self, state: Mapping[str, Any]) -> bool:
        """Go on from a state that `state()` returned; whether it is about the same metric, read the same way.

        Checkpoints of earlier versions do not say what they watched; they are taken to be about this.
        """
        watched = state.get("settings") or asdict(self.settings)
        if any(watched[name] != getattr(self.settings, name) for name in ("metric", "mode")):
            return False
        self.best, self.waited = state["best"], state["waited"]
        return True

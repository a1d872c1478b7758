"""Early stopping on a validation metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from warpgrad.errors import WarpgradError, refuse_if


@dataclass
class EarlyStopping:
    """Stop when a validation metric has not improved for `patience` validations; keep the best parameters.

    Example:
        >>> stopping = wg.EarlyStopping("loss", patience=2)
        >>> [stopping.observe({"loss": loss}) for loss in (1.0, 0.5, 0.6, 0.7)], stopping.stop
        ([True, True, False, False], True)
    """

    metric: str
    """Name in what the validation function returns."""
    patience: int
    """Validations without a new best before the run stops."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more is better."""

    best: float = field(default=math.nan, init=False)
    waited: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        refuse_if(self.patience < 1, f"patience={self.patience}: early stopping must wait for at least 1 validation.")
        refuse_if(self.mode not in ("min", "max"), f"mode={self.mode!r} is unknown; choose min or max.")

    def observe(self, scores: Mapping[str, float]) -> bool:
        """Take a validation; whether it is the best so far."""
        if self.metric not in scores:
            raise WarpgradError(
                f"early stopping watches '{self.metric}', but validation returned {', '.join(scores) or 'nothing'}."
            )
        value = scores[self.metric]
        better = value < self.best if self.mode == "min" else value > self.best
        if math.isnan(self.best) or better:
            self.best, self.waited = value, 0
            return True
        self.waited += 1
        return False

    @property
    def stop(self) -> bool:
        return self.waited >= self.patience

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]

"""Search with no state: what a trial tries depends on the seed and its number, and under TPE on finished trials.

Optuna's samplers draw from one stream, so that what a trial gets depends on how often, and by which process, the
stream was used before. Here every draw has a stream of its own, keyed by (seed, trial, setting). Random search tries
the same values with any number of workers and after any kill; TPE does with one worker.
"""

from __future__ import annotations

from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from warpgrad.keys import fold
from warpgrad.sweep.results import Search


class Keyed(BaseSampler):
    """One of Optuna's samplers, seeded anew for every draw."""

    def __init__(self, search: Search, seed: int) -> None:
        self.search, self.seed = search, seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler(trial, "").infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler(trial, "").sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def _sampler(self, trial: FrozenTrial, name: str) -> BaseSampler:
        seed = fold(self.seed, "sweep", trial.number, name) % 2**32  # what Optuna accepts
        return TPESampler(seed=seed) if self.search == "tpe" else RandomSampler(seed=seed)

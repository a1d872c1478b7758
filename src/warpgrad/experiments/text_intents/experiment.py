"""Intents of sentences: one pretrained encoder, many domains, a handful of sentences of each intent.

    warpgrad data prepare clinc150
    warpgrad run text-intents --preset small --method warp-maml
    warpgrad reproduce text-intents --workers 1
    warpgrad data prepare text --source my.csv --text-field sentence --name mine
    warpgrad run text-intents --preset small --data mine

A task is a set of intents with a few sentences of each. The domains are split by the seed: six to meta-train on, one to
validate on, three to test on; labels without domains are split 60 / 10 / 30. One meta-training serves all shots.

| method        | θ, adapted                        | φ                      | learned by                          |
|---------------|-----------------------------------|------------------------|-------------------------------------|
| `warp-maml`   | low-rank updates, head            | linear warps           | φ: Algorithm 1, L or L̂; θ0: MAML    |
| `warp-leap`   | low-rank updates, head            | linear warps           | φ: Algorithm 1, L or L̂; θ0: Leap    |
| `maml`        | low-rank updates, head            |                        | backpropagation through K steps     |
| `fomaml`      | low-rank updates, head            |                        | first-order MAML                    |
| `reptile`     | low-rank updates, head            |                        | θ0 − θ_K                            |
| `anil`        | head                              | low-rank updates       | backpropagation through K steps     |
| `meta-sgd`    | low-rank updates, a step size each|                        | the same, for the step sizes too    |
| `tune-theta`  | low-rank updates, head            |                        | nothing: AdamW on every task        |
| `tune-all`    | every weight of the layers, head  |                        | the same                            |
| `lora`        | low-rank updates of query, value  |                        | the same                            |
| `contrastive` | every weight of the top layers    |                        | the same, on pairs; logistic head   |
| `logistic`    | a logistic regression             |                        |                                     |
| `centroid`    | nothing                           |                        |                                     |

Every head begins at the centroids of the support set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution, Experiment, require_users
from warpgrad.experiments.runner import meta_trained, without_meta_training
from warpgrad.experiments.text_intents import page
from warpgrad.experiments.text_intents.config import DECLARATION, META, TUNED, WARPED, TextConfig
from warpgrad.experiments.text_intents.evaluation import check_sentences, evaluate_on_domains, validation_scores
from warpgrad.experiments.text_intents.methods import open_sentences, recipe, training_family
from warpgrad.layers.sentences import weights_hash
from warpgrad.model.learner import Learner
from warpgrad.training.early_stopping import EarlyStopping

_USERS = {
    "warp": WARPED,
    "objective": WARPED,
    "rank": (*META, "tune-theta", "lora"),
    "inner_lr": META,
    "meta_lr": (*WARPED, "anil"),
    "theta0_lr": tuple(method for method in META if method != "anil"),
    "rule_lr": ("meta-sgd",),
    "test_steps": META,
    "tune_lr": TUNED,
    "tune_steps": TUNED,
    "tune_head": ("tune-theta", "tune-all", "lora"),
    "penalty": ("contrastive", "logistic"),
}
"""Settings that mean nothing to the other methods."""


class TextIntents(Experiment[TextConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: TextConfig) -> TextConfig:
        super().check(config)
        require_users(config, self.preset(config.preset, config.method), _USERS)
        for name in ("train_shots", "shots"):
            shots = getattr(config, name)
            if not shots or min(shots) < 1 or len(set(shots)) < len(shots):
                raise WarpgradError(f"{name}={shots}: name at least one number of shots, each once and at least 1.")
        return config

    def reads(self, config: TextConfig) -> dict[str, str | None]:
        return {**super().reads(config), "encoder": weights_hash(config.encoder)}

    def train(self, config: TextConfig, execution: Execution) -> int:
        check_sentences(config)
        if config.method not in META:
            return without_meta_training(self, config, execution)
        data = open_sentences(config)
        chosen = recipe(config, data.encoder)

        def validate(learner: Learner) -> dict[str, float]:
            assert learner is chosen.method.learner
            return validation_scores(config, data, chosen.method)

        return meta_trained(
            self,
            config,
            execution,
            chosen,
            training_family(config, data),
            validate=validate,
            validate_every=config.validate_every,
            early_stopping=EarlyStopping("loss", config.meta_steps, "min"),
        )

    def evaluate(self, config: TextConfig, directory: Path) -> dict[str, Any]:
        return evaluate_on_domains(config, open_sentences(config), directory)


EXPERIMENT = TextIntents()

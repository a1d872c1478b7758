"""Secret alphabets with a transformer encoder: Algorithm 1 (online), the exact objective, Adam as the inner rule.

Every task is a translation: reverse the sequence, then rename its symbols by a permutation of the task's own.
Reversal is common to all tasks, the alphabet is not. The encoder, chosen by name, becomes the warp φ; the
embeddings and the head are θ. θ0 is never learned (C = 0): all that meta-training changes is the warp.

    python examples/transformer.py
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 10  # K
HELD_OUT = 50
SYMBOLS, LENGTH = 8, 6
RULE = wg.Adam(lr=0.03, eps=1e-3)  # a larger ε than usual: the objective differentiates through the step


class Translator(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.position = nn.Parameter(torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, sequence: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.symbol(sequence) + self.position))
        return logits.transpose(1, 2)  # classes before positions, as cross-entropy expects them


def translation_task(seed: int) -> wg.SupervisedTask:
    """y_t = π(x_{T−t}): 16 sequences to adapt to, 16 others for the meta-loss, 64 to test on."""
    draw = generator(seed, "translation")
    alphabet = torch.randperm(SYMBOLS, generator=draw)

    def sequences(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(SYMBOLS, (count, LENGTH), generator=draw)
        return x, alphabet[x.flip(1)]

    return wg.SupervisedTask(
        *sequences(16), F.cross_entropy, metrics={"accuracy": wg.accuracy}, meta=sequences(16), test=sequences(64)
    )


def main(meta_steps: int = 80) -> dict[str, float]:
    torch.manual_seed(SEED)
    model = Translator()
    new_tasks = [translation_task(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    score = partial(wg.score, tasks=new_tasks, rule=RULE, steps=STEPS)
    plain = score(wg.Learner(model, warp=()))
    learner = wg.Learner(model, warp="encoder")
    before = score(learner)
    wg.meta_train(
        learner,
        wg.FunctionFamily(translation_task),
        algorithm=wg.Online(steps=STEPS, tasks=4),
        rule=RULE,
        objective=wg.Exact(),
        optimiser=partial(torch.optim.Adam, lr=1e-3),
        meta_steps=meta_steps,
        seed=SEED,
    )
    after = score(learner)
    print(f"{HELD_OUT} new alphabets, {STEPS} steps")
    rows = {"new model, every layer adapts": plain, "before meta-training": before, "after meta-training": after}
    for name, scores in rows.items():
        print(f"{name:<30} ", "  ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return {name: scores["loss"] for name, scores in zip(("plain", "before", "after"), rows.values(), strict=True)}


if __name__ == "__main__":
    main()

"""A small GPT-2 that takes up an author's hand: language-model losses, padding, and warps in a decoder.

Every task is an author invented here: twelve words of their own and a habit of which follows which. The model, built
from a configuration and read character by character, has seen none of them. Warps follow the attention and the
feed-forward block of every layer; θ is a low-rank update of the same projections. Sentences have different lengths, so
batches are padded, and what is padding counts in no loss.

    python examples/author.py
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 5  # K
HELD_OUT = 20
RULE = wg.SGD(lr=1.0)
LETTERS = "abcdefghijklmnopqrstuvwxyz ."
END, PAD = len(LETTERS), len(LETTERS) + 1
IGNORED = -100

Batch = tuple[Tensor, Tensor]
"""(characters [sentences, longest], attention mask)."""


def decoder(width: int = 48, layers: int = 2) -> nn.Module:
    """A GPT-2 from its configuration; nothing is downloaded."""
    config = GPT2Config(
        vocab_size=PAD + 1, bos_token_id=END, eos_token_id=END, n_embd=width, n_layer=layers, n_head=4, n_positions=96,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def characters(sentences: list[str]) -> Batch:
    """Sentences as numbers, each with its end, padded to the longest."""
    rows = [[*map(LETTERS.index, sentence), END] for sentence in sentences]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    return tokens, (tokens != PAD).long()


class Author(wg.Task):
    """Continue what this author writes."""

    def __init__(self, seed: int, sentences: int = 8) -> None:
        self.name = f"author {seed}"
        draw = generator(seed, "author")
        pick = partial(torch.randint, generator=draw)
        words = ["".join(LETTERS[int(i)] for i in pick(26, (2 + int(pick(5, (1,))),))) for _ in range(12)]
        after = torch.rand(12, 12, generator=draw).pow(4)  # a few successors are far likelier than the others

        def sentence() -> str:
            said = [int(pick(12, (1,)))]
            for _ in range(2 + int(pick(5, (1,)))):
                said.append(int(torch.multinomial(after[said[-1]], 1, generator=draw)))
            return " ".join(words[place] for place in said) + "."

        self.batches = {part: characters([sentence() for _ in range(sentences)]) for part in ("own", "meta", "test")}

    def adapt_batch(self, k: int) -> Batch:
        del k
        return self.batches["own"]

    def meta_batch(self, k: int) -> Batch:
        del k
        return self.batches["meta"]

    def test_batches(self) -> list[Batch]:
        return [self.batches["test"]]

    def loss(self, forward: wg.Forward, batch: Batch) -> Tensor:
        tokens, mask = batch
        logits = forward(input_ids=tokens, attention_mask=mask).logits
        targets = tokens[:, 1:].masked_fill(mask[:, 1:] == 0, IGNORED)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def main(meta_steps: int = 150) -> dict[str, float]:
    torch.manual_seed(SEED)
    warped = wg.warp_transformer(decoder(), rank=4, scale=4.0)
    # A model that has read nothing yet learns its letters along with the warps: all but θ is φ.
    warped.requires_grad_(True)
    learner = wg.Learner(warped, task=("*.down", "*.up"))
    authors = [Author(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    score = partial(wg.score, learner, authors, rule=RULE, steps=STEPS)
    before = score()["loss"]
    wg.meta_train(
        learner, wg.FunctionFamily(Author), algorithm=wg.Online(steps=STEPS, tasks=2), rule=RULE, objective=wg.Exact(),
        initialiser=wg.FOMAML(), optimiser=partial(torch.optim.Adam, lr=3e-3), clip=1.0, meta_steps=meta_steps,
        seed=SEED,
    )  # fmt: skip
    after = score()["loss"]
    unadapted = sum(
        wg.evaluate(learner, author, learner.start(0), learner.buffers())["loss"] for author in authors
    ) / len(authors)
    plain = wg.merge_transformer(wg.adapt(learner, authors[0], rule=RULE, steps=STEPS))
    print(f"{HELD_OUT} new authors, {STEPS} steps, nats per character")
    rows = {"before meta-training": before, "after it, not adapted": unadapted, "after it, adapted": after}
    for name, loss in rows.items():
        print(f"{name:<22}  loss {loss:.3f}")
    print(f"handed over: a plain {type(plain).__name__} with {sum(p.numel() for p in plain.parameters())} weights")
    return rows


if __name__ == "__main__":
    main()

"""Your own labelled sentences in, an adapted and exported classifier out.

    python examples/intents.py past.csv new.csv model

`past.csv` has sentences of many labels, ten or more of each: what a pretrained encoder learns to adapt on. `new.csv`
has a few sentences of each new label. Both have the columns text and label. The folder `model` is one that transformers
loads, with a script that classifies: it does not need this library.
"""

import sys
from functools import partial
from pathlib import Path

import torch

import warpgrad as wg
from warpgrad.data.sources.text import Fields, prepare_text, read_rows
from warpgrad.data.tasks.intents import IntentFamily, IntentShape, IntentTask, SentenceStates
from warpgrad.layers.export import export_classifier
from warpgrad.layers.sentences import MINILM, SentenceClassifier, open_encoder, upper_part

LAYERS, STEPS, RULE = 2, 3, wg.SGD(lr=1.0)


def main(past: str, new: str, out: str, encoder: str = MINILM, meta_steps: int = 50) -> float:
    torch.manual_seed(0)
    opened = open_encoder(encoder)
    encode = partial(opened.lower, layers=LAYERS)  # the lower layers stay: what they compute is computed once

    text = prepare_text(past, Path(out).parent / "past")
    shape = IntentShape(ways=15, shots=(5,), query=4, batch_shots=3)
    tasks = IntentFamily(text, SentenceStates.encoded(text.texts, encode), range(len(text.labels)), shape)

    upper = wg.warp_transformer(upper_part(opened.model, LAYERS), rank=8)
    learner = wg.Learner(SentenceClassifier(upper, width=opened.width), start={"head": "zero"})
    wg.meta_train(
        learner, tasks, algorithm=wg.Online(steps=STEPS, tasks=1), rule=RULE, objective=wg.Exact(),
        initialiser=wg.MAML(), optimiser=partial(torch.optim.Adam, lr=5e-4), clip=10.0, meta_steps=meta_steps,
        progress=True,
    )  # fmt: skip

    rows = read_rows(new, Fields())
    labels = sorted({label for _, label, _ in rows})
    states = SentenceStates.encoded([sentence for sentence, _, _ in rows], encode)
    members = [[place for place, row in enumerate(rows) if row[1] == label] for label in labels]
    task = IntentTask("new labels", states, members, members)
    net, curve = wg.adapt(learner, task, rule=RULE, steps=20, curve=True)
    assert isinstance(net, SentenceClassifier)
    batch = task.batch(members)
    head = net.fitted(batch.states, batch.mask, batch.labels, len(labels))
    export_classifier(Path(out), opened, net, head, labels, layers=LAYERS)
    print(
        f"task loss {curve.losses[0]:.3f} before, {curve.losses[-1]:.3f} after 20 steps; python {out}/classify.py '…'"
    )
    return curve.losses[-1]


if __name__ == "__main__":
    main(past=sys.argv[1], new=sys.argv[2], out=sys.argv[3])

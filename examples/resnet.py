"""Image classification with a small batch-norm ResNet: Algorithm 2 (offline), the approximate objective, Reptile.

Every task has five classes of its own: patterns drawn at random, seen shifted, in other colours and under noise.
The second convolution of every residual block, chosen by name, becomes the warp φ; all else is θ. Batch-norm
policy: `batch`, the statistics of the batch at hand in adaptation, meta-loss and test, so a prediction depends on the
batch it is made in. Under the default, `running`, test uses averages that start anew with every task, and ten
steps at the usual momentum of 0.1 are too few for them to settle.

    python examples/resnet.py
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 10  # K
HELD_OUT = 30
RULE = wg.SGD(lr=0.1)


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(BasicBlock(3, width, 2))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(x)).mean((2, 3)))
        return logits


def image_task(seed: int) -> wg.SupervisedTask:
    """Five classes of 16×16 images: 5 of each to adapt to, 5 others for the meta-loss, 20 to test on."""
    draw = generator(seed, "images")
    patterns = F.interpolate(torch.randn(5, 3, 4, 4, generator=draw), size=16, mode="bilinear")

    def images(per_class: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(5).repeat(per_class)
        shifts = torch.randint(16, (len(labels), 2), generator=draw).tolist()
        shifted = [patterns[label].roll(shift, (1, 2)) for label, shift in zip(labels, shifts, strict=True)]
        colours = 0.5 * torch.randn(len(labels), 3, 1, 1, generator=draw)
        noise = 0.5 * torch.randn(len(labels), 3, 16, 16, generator=draw)
        return torch.stack(shifted) + colours + noise, labels

    return wg.SupervisedTask(
        *images(5), F.cross_entropy, metrics={"accuracy": wg.accuracy}, meta=images(5), test=images(20)
    )


def main(meta_steps: int = 50) -> dict[str, float]:
    torch.manual_seed(SEED)
    model = ResNet()
    new_tasks = [image_task(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    score = partial(wg.score, tasks=new_tasks, rule=RULE, steps=STEPS)
    plain = score(wg.Learner(model, warp=(), batch_norm="batch"))
    learner = wg.Learner(model, warp="layer*.conv2", batch_norm="batch")
    before = score(learner)
    wg.meta_train(
        learner,
        wg.FunctionFamily(image_task),
        algorithm=wg.Offline(steps=STEPS, tasks=4, samples=4),
        rule=RULE,
        objective=wg.Approximate(),
        initialiser=wg.Reptile(),
        optimiser={"phi": partial(torch.optim.Adam, lr=3e-3), "theta0": partial(torch.optim.SGD, lr=0.5)},
        meta_steps=meta_steps,
        seed=SEED,
    )
    after = score(learner)
    print(f"{HELD_OUT} new image tasks, {STEPS} steps")
    rows = {"new model, every layer adapts": plain, "before meta-training": before, "after meta-training": after}
    for name, scores in rows.items():
        print(f"{name:<30} ", "  ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return {name: scores["loss"] for name, scores in zip(("plain", "before", "after"), rows.values(), strict=True)}


if __name__ == "__main__":
    main()

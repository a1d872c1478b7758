"""A pretrained warp on your own pictures: a folder with a folder of drawings for each class.

The network was meta-trained on Omniglot and comes with the package; here it learns up to 20 classes that it has
never seen, in 100 steps of gradient descent, beside the same network from random weights. Pictures are read as dark
strokes on a light ground, made grey and 28×28; of every class, one in five is kept to test on.

    python examples/pretrained.py pictures        # pictures/CLASS/*.png
    python examples/pretrained.py                 # without a folder: invented characters, drawn for the purpose

It needs Pillow, which comes with `pip install 'warpgrad[paper]'`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.data import prepare_drawn

NAME = "omniglot-warp-leap-32"
STEPS = 100
BATCH = 20
SIDE = 28


def read_picture(path: Path) -> Tensor:
    """One picture as the network knows them: [1, 28, 28], ink 1 on paper 0."""
    with Image.open(path) as picture:
        grey = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return 1 - torch.from_numpy(np.asarray(grey, dtype=np.float32) / 255).unsqueeze(0)


def folder_task(folder: Path, classes: int) -> wg.SupervisedTask:
    """The task of telling the folders in `folder` apart."""
    found = [sorted(path.iterdir()) for path in sorted(folder.iterdir()) if path.is_dir()]
    if not 2 <= len(found) <= classes or min(map(len, found), default=0) < 2:
        raise SystemExit(f"{folder} needs 2 to {classes} folders, one for each class, with two pictures or more.")
    parts: dict[bool, list[tuple[Tensor, int]]] = {False: [], True: []}
    for label, paths in enumerate(found):
        for place, path in enumerate(paths):
            parts[place % 5 == 1].append((read_picture(path), label))
    train, test = (
        (torch.stack([image for image, _ in part]), torch.tensor([label for _, label in part]))
        for part in parts.values()
    )
    return wg.SupervisedTask(
        *train, F.cross_entropy, batch_size=BATCH, test=test, metrics={"accuracy": wg.accuracy}, name=folder.name
    )


def draw_weights(module: nn.Module) -> None:
    """New random weights for a layer that has any."""
    if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
        module.reset_parameters()


def draw_pictures(folder: Path) -> None:
    """An invented alphabet as a folder of pictures, black on white."""
    store = prepare_drawn(folder.parent / "store", seed=1, alphabets=1, characters=(20, 20))
    for index, name in enumerate(store.classes):
        own = folder / name.replace("/", "-")
        own.mkdir(parents=True)
        for drawer, image in enumerate(store.images(index, list(range(store.count(index))))):
            Image.fromarray(255 - image[0].numpy()).save(own / f"{drawer:02d}.png")


def main(pictures: Path, steps: int = STEPS) -> dict[str, float]:
    method = wg.zoo.load(NAME)
    classes = wg.zoo.card(NAME).settings["characters"]
    task = folder_task(pictures, classes)
    found = {"pretrained": wg.score(method.learner, [task], rule=method.rule, steps=steps)["accuracy"]}
    torch.manual_seed(0)
    method.learner.module.apply(draw_weights)
    found["from random weights"] = wg.score(method.learner, [task], rule=method.rule, steps=steps)["accuracy"]
    print(f"{pictures.name}: accuracy on pictures held out, after {steps} steps of {BATCH} pictures")
    for name, value in found.items():
        print(f"  {name:<20} {value:.1%}")
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as place:
            draw_pictures(Path(place) / "drawn")
            main(Path(place) / "drawn")

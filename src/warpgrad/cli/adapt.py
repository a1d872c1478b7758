"""`warpgrad adapt RUN --data my.csv --out model/`: adapt a meta-trained run to a few labelled sentences.

The result is a folder with a classifier that transformers loads without this library.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from warpgrad.cli.run import run_config
from warpgrad.errors import require


def adapt_command(
    *,
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    data: Path,
    out: Path,
    text_field: str = "text",
    label_field: str = "label",
    encoder: str | None = None,
    steps: int | None = None,
    keep_warps: bool = False,
) -> None:
    """Adapt a run of text-intents to your own labelled sentences, and save the classifier as a folder.

    Example: warpgrad adapt runs/mine --data my.csv --out model

    Args:
        run: The run directory, of a meta-trained method.
        data: A CSV or JSONL file of labelled sentences. The classifier is adapted to all of them.
        out: The folder to create. AutoModel of transformers can load it.
        text_field: The field with the sentence.
        label_field: The field with the label.
        encoder: Where the run's encoder is now, if it has moved.
        steps: The number of adaptation steps. Without it, that of the test of the run.
        keep_warps: Do not merge the warps into the weights, as non-linear warps need; load_warped(...) loads it.
    """
    declared, config = run_config(run)
    require(
        declared.name == "text-intents",
        f"{run} is a run of {declared.name}; 'warpgrad adapt' takes a run of text-intents.",
    )
    require(steps is None or steps >= 1, f"steps={steps}: adaptation needs at least 1 step.")
    require(not out.exists(), f"{out} already exists: give another folder with --out.")
    # Imported here because the help text, which exits before this, needs no torch.
    from warpgrad.data.sources.text import Fields
    from warpgrad.experiments.text_intents.adapting import adapt_run

    began = time.monotonic()
    summary = adapt_run(
        config, run, data, out,
        fields=Fields(text_field, label_field), encoder=encoder, steps=steps, keep_warps=keep_warps,
    )  # fmt: skip
    print(
        f"{summary.sentences} sentences, {summary.labels} labels, {summary.steps} steps, "
        f"{time.monotonic() - began:.1f} s: task loss {summary.first:.3f} before, {summary.last:.3f} after"
    )
    print(f"model: {out}" + ("" if keep_warps else f"; try: python {out}/classify.py 'a sentence'"))

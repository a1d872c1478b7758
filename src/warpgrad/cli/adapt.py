"""`warpgrad adapt RUN --data my.csv --out model/`: from a meta-trained run and a few labelled sentences to a folder
with an adapted classifier, which plain transformers loads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from warpgrad.cli.main import parse
from warpgrad.cli.run import run_config
from warpgrad.errors import WarpgradError


@dataclass(frozen=True)
class AdaptArguments:
    run: tyro.conf.Positional[Path]
    """A run directory of text-intents."""
    data: Path
    """Labelled sentences, CSV or JSONL; all of them are adapted to."""
    out: Path
    """The folder to make."""
    text_field: str = "text"
    """What the file calls the sentence."""
    label_field: str = "label"
    """What it calls the label."""
    encoder: str | None = None
    """Where the run's encoder is now, if not where it was."""
    steps: int | None = None
    """Adaptation steps; those that the run is tested with if not given."""
    keep_warps: bool = False
    """Do not merge the warps into the weights: for non-linear ones. Only warpgrad.layers.load_warped reads that."""


def adapt(words: list[str]) -> None:
    """Adapt what a run has meta-learned to one's own labels."""
    if not words:
        raise WarpgradError("name the run: warpgrad adapt RUN --data FILE --out FOLDER.")
    given: AdaptArguments = parse(AdaptArguments, words, "warpgrad adapt")
    declared, config = run_config(given.run)
    if declared.name != "text-intents":
        raise WarpgradError(f"{given.run} is a run of {declared.name}; 'warpgrad adapt' takes one of text-intents.")
    if given.steps is not None and given.steps < 1:
        raise WarpgradError(f"steps={given.steps}: adaptation needs at least 1 step.")
    if given.out.exists():
        raise WarpgradError(f"{given.out} is there already: name another folder with --out.")
    from warpgrad.data.sources.text import Fields
    from warpgrad.experiments.text_intents.adapting import adapt_run

    began = time.monotonic()
    summary = adapt_run(
        config,
        given.run,
        given.data,
        given.out,
        fields=Fields(given.text_field, given.label_field),
        encoder=given.encoder,
        steps=given.steps,
        keep_warps=given.keep_warps,
    )
    print(
        f"{summary.sentences} sentences, {summary.labels} labels, {summary.steps} steps, "
        f"{time.monotonic() - began:.1f} s: task loss {summary.first:.3f} before, {summary.last:.3f} after"
    )
    print(f"model: {given.out}" + ("" if given.keep_warps else f"; try: python {given.out}/classify.py 'a sentence'"))

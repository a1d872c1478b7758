"""How far one process and two ranks of torchrun are apart in float32, after the same meta-steps.

    python -m tests.faults.ranks --record results/reliability.json

The two add the same gradients in another order. Nothing is judged here: the size of the difference is put on record,
for the page that says it (docs/reliability.md). In float64, tests/training/test_distributed.py holds it below 1e-12.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from tests.faults.record import put_on_record
from tests.faults.soak import MEET
from warpgrad.training import checkpoint
from warpgrad.training.run_directory import newest_checkpoint

META_STEPS, STEPS = 20, 20
WORDS = ["--meta-steps", str(META_STEPS), "--steps", str(STEPS), "--test-surfaces", "2", "--test-starts", "2"]


def trained(run: Path, ranks: int) -> tuple[dict[str, torch.Tensor], float]:
    """The weights of a run on the surfaces, and the meta-loss of its last meta-step."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *MEET] if ranks > 1 else []
    words = [*launcher, "-m", "warpgrad", "run", "synthetic", *WORDS, "--out", str(run), "--quiet"]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    weights: dict[str, torch.Tensor] = checkpoint.read_checkpoint(newest_checkpoint(run))["weights"]["module"]
    return weights, float(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["meta_loss"])


def command_line() -> None:
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("--record", type=Path, help="where the numbers are kept, as results/reliability.json")
    given = form.parse_args()
    with tempfile.TemporaryDirectory(prefix="warpgrad-ranks-") as folder:
        (alone, loss), (together, other) = (trained(Path(folder) / f"{ranks}", ranks) for ranks in (1, 2))
    apart = max(float((alone[name] - together[name]).abs().max()) for name in alone)
    found = {"meta_steps": META_STEPS, "steps": STEPS, "weights": apart, "meta-loss": abs(loss - other) / abs(loss)}
    print(found)
    put_on_record(given.record, "ranks", "surfaces", {**found, "failures": []})


if __name__ == "__main__":
    command_line()

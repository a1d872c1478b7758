"""A tiny run of every experiment and method, and what it leaves: did a change of the code change any number?

    python -m benchmarks.fingerprints --out before.json --data DIR          # at the old commit
    python -m benchmarks.fingerprints --against before.json --data DIR      # at the new one

Every run goes through the command line, in one process and, where something is meta-learned, in two under torchrun. A
fingerprint is the SHA-256 of each tensor of the last checkpoint, and all numbers of metrics and evaluation but times.
DIR holds the prepared data sets cifar-fs, fc100 and clinc150; experiments whose data it lacks are left out, and named.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors import safe_open

DIAGNOSTICS = ("lr/", "gradient_norm/")
"""What follows from the tensors that are compared anyway."""
TIMES = ("seconds", "cpu_seconds", "validation_seconds", "processor_seconds")

TINY: dict[str, dict[str, str]] = {
    "synthetic": {"meta-steps": "3", "steps": "6", "starts": "3", "test-surfaces": "4", "test-starts": "2"},
    "omniglot": {
        "preset": "small", "data": "drawn", "filters": "4", "meta-steps": "2", "meta-batch": "2", "steps": "3",
        "maml-steps": "2", "tasks": "3", "held-out": "2", "test-steps": "3", "test-every": "1", "batch-size": "4",
        "test-batch": "4", "validate-every": "1", "validation-tasks": "1",
    },
    "few-shot": {
        "preset": "small", "filters": "4", "meta-steps": "2", "validate-every": "1", "validation-episodes": "2",
        "test-episodes": "3", "query": "3", "train-shots": "2",
    },
    "multi-shot": {
        "preset": "small", "shots": "20", "test-images": "5", "batch-size": "4", "steps": "3", "meta-steps": "2",
        "validate-every": "1", "validation-tasks": "1", "test-tasks": "2", "headline-steps": "3", "test-steps": "6",
        "test-every": "3",
    },
    "maze": {
        "preset": "small", "meta-steps": "3", "episodes": "2", "size": "5", "length": "8", "hidden": "4",
        "validate-every": "1", "validation-episodes": "2", "test-episodes": "3",
    },
    "continual": {
        "preset": "small", "meta-steps": "3", "steps-per-subtask": "2", "hidden": "6", "warp-hidden": "4", "tasks": "2",
        "test-tasks": "2", "test-points": "4", "validation-tasks": "2", "validate-every": "1",
    },
    "text-intents": {
        "preset": "small", "ways": "3", "train-shots": "4", "meta-steps": "2", "steps": "2", "validate-every": "1",
        "validation-draws": "1", "shots": "2", "draws": "1", "query": "3", "together": "0", "outside": "10",
    },
}  # fmt: skip
DATA = {"few-shot": "cifar-fs", "multi-shot": "fc100", "text-intents": "clinc150"}
"""Experiments that need a prepared data set."""


def methods() -> dict[str, list[str]]:
    """Return experiment -> its methods, as the command line lists them."""
    found: dict[str, list[str]] = {}
    lines = _warpgrad("list").splitlines()
    for line in lines:
        if not line.startswith(" "):
            found[name := line.split()[0]] = []
        elif line.strip().startswith("methods:"):
            found[name] = [word.strip() for word in line.split(":", 1)[1].split(",")]
    return found


def fingerprint(directory: Path) -> dict[str, Any]:
    """Return the tensors and numbers that a run has left, except for times."""
    checkpoints = sorted((directory / "checkpoints").glob("step-*.safetensors"))
    tensors = {}
    if checkpoints:
        with safe_open(str(checkpoints[-1]), framework="numpy") as file:
            tensors = {name: hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() for name in file.keys()}  # noqa: SIM118
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    evaluation = json.loads((directory / "evaluation.json").read_text())
    for name in ("sha256", "run"):  # of whole files, times included
        evaluation.pop(name, None)
    return {"tensors": tensors, "metrics": [_untimed(line) for line in metrics], "evaluation": _untimed(evaluation)}


def fingerprints(data: Path | None, only: str | None) -> dict[str, dict[str, Any]]:
    """Return (experiment, method and number of processes) -> fingerprint."""
    found = {}
    for experiment, names in methods().items():
        if only not in (None, experiment):
            continue
        if experiment not in TINY:
            print(f"{experiment}: left out, for no tiny size of it is declared", file=sys.stderr)
            continue
        store = None if data is None or experiment not in DATA else data / DATA[experiment]
        if experiment in DATA and (store is None or not store.exists()):
            print(f"{experiment}: left out, for want of {DATA[experiment]} in --data", file=sys.stderr)
            continue
        for method in names:
            for processes in (1, 2):
                label = f"{experiment} {method}, {processes} process{'es' if processes > 1 else ''}"
                with tempfile.TemporaryDirectory() as place:
                    directory = Path(place) / "run"
                    words = ["run", experiment, "--method", method, "--out", str(directory), "--quiet"]
                    for name, value in TINY[experiment].items():
                        words += [f"--{name}", *value.split()]
                    if store is not None:
                        words += ["--data", str(store)]
                    try:
                        _warpgrad(*words, processes=processes)
                    except subprocess.CalledProcessError as error:
                        found[label] = {
                            "refused": error.stderr.strip().splitlines()[-1] if processes == 1 else "refused"
                        }
                    else:
                        found[label] = fingerprint(directory)
                print(f"{label}: {'refused' if 'refused' in found[label] else 'done'}", file=sys.stderr, flush=True)
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """List the runs and parts that are not the same."""
    lines = [f"{label}: only {'before' if label in before else 'after'}" for label in sorted(set(before) ^ set(after))]
    for label in sorted(set(before) & set(after)):
        for part in sorted(set(before[label]) | set(after[label])):
            if before[label].get(part) != after[label].get(part):
                lines.append(f"{label}: {part} differ")
    return lines


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in TIMES and not name.startswith(DIAGNOSTICS)}
        return {name: _untimed(part) for name, part in kept.items()}
    return [_untimed(part) for part in value] if isinstance(value, list) else value


def _warpgrad(*words: str, processes: int = 1) -> str:
    launcher = ["-m", "warpgrad"]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *launcher]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, *launcher, *words], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout


def main() -> int:
    options = argparse.ArgumentParser(description="Fingerprints of tiny runs of everything.")
    options.add_argument("--out", type=Path, help="write the fingerprints here")
    options.add_argument("--against", type=Path, help="compare with those of an earlier commit")
    options.add_argument("--data", type=Path, help="folder of prepared data sets")
    options.add_argument("--only", help="one experiment")
    given = options.parse_args()
    found = fingerprints(None if given.data is None else given.data.absolute(), given.only)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if given.against is None:
        return 0
    lines = differences(json.loads(given.against.read_text()), found)
    print("\n".join(lines) or f"the same in all {len(found)} runs")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

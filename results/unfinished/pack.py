"""Long runs that outlive the machine they began on: the newest checkpoint and the metrics of each, as one archive; and
finished runs of a table that is not yet whole, their results and metrics alone.

    python results/unfinished/pack.py RUN...            RUN -> results/unfinished/EXPERIMENT--NAME.tar.gz
    python results/unfinished/pack.py --unpack RUNS     every archive back into RUNS/EXPERIMENT/NAME

COMMIT in an archive says where its run goes on from: clone that, unpack, and repeat the command of the table.
Archives are committed whenever work stops and removed when their run is on record.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
MOST = 8 << 20
"""Bytes of an archive at most."""


def pack(run: Path) -> Path:
    """One archive of config, metrics, the newest checkpoint or the results, and the commit of the run's checkout."""
    results = [run / "summary.json", run / "evaluation.json"]
    finished = all(path.exists() for path in results)
    kept = results if finished else sorted((run / "checkpoints").glob("step-*.safetensors"))[-1:]
    if not kept:
        sys.exit(f"{run} has no checkpoint yet.")
    experiment = json.loads((run / "config.json").read_text())["experiment"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=run, capture_output=True, text=True, check=True).stdout
    target = HERE / f"{experiment}--{run.name}.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for path in (run / "config.json", run / "metrics.jsonl", *kept):
            archive.add(path, path.relative_to(run))
        entry = tarfile.TarInfo("COMMIT")
        entry.size = len(head.encode())
        archive.addfile(entry, io.BytesIO(head.encode()))
    if target.stat().st_size > MOST:
        target.unlink()
        sys.exit(f"{run} packs to more than {MOST >> 20} MiB.")
    return target


def unpack(archive: Path, root: Path) -> Path:
    """Put a run back in its place; refuse to replace one that is there already."""
    experiment, _, name = archive.name.removesuffix(".tar.gz").partition("--")
    target = root / experiment / name
    if target.exists():
        sys.exit(f"{target} exists already; move it away first.")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return target


def main() -> None:
    options = argparse.ArgumentParser(description="Pack unfinished runs, or unpack them.")
    options.add_argument("places", type=Path, nargs="+", metavar="RUN", help="run directories, or the runs folder")
    options.add_argument("--unpack", action="store_true", help="put every archive back into the runs folder")
    given = options.parse_args()
    if given.unpack:
        for archive in sorted(HERE.glob("*.tar.gz")):
            print(unpack(archive, given.places[0]))
    else:
        for run in given.places:
            print(pack(run))


if __name__ == "__main__":
    main()

"""Make an entry of the zoo from a finished run and the record that contains its numbers.

    warpgrad run synthetic --preset long
    python -m warpgrad.zoo runs/synthetic/long-warpgrad-seed0 --name synthetic-long \\
        --record results/synthetic-long.json --with-metrics

The run must be one that anybody can reproduce: made from a commit, with settings that are in the record and with the
same numbers. `--out` names a folder other than the package's; `wg.zoo.load(name, folder=...)` reads it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from warpgrad.data.prepared import open_prepared
from warpgrad.errors import WarpgradError, check_name, require
from warpgrad.experiments import find_builder, stored_config
from warpgrad.experiments.records import check_commit, read_record
from warpgrad.io import read_bytes, read_object, settings_of, write_bytes, write_json
from warpgrad.training.run_directory import check_metrics, newest_checkpoint
from warpgrad.training.saving import load, save
from warpgrad.zoo import CARD, ENTRIES, METRICS, WEIGHTS, Card

LARGEST = 1_500_000
"""The maximum size of an entry's weights in bytes, since they come with every installation."""


def make_entry(run: Path, name: str, record: Path, out: Path = ENTRIES, *, with_metrics: bool = False) -> Card:
    """Write the weights and the card of a run into a new folder in `out`.

    Args:
        run: The run directory.
        name: Of the entry.
        record: The file that holds the results of a run under these settings, as `warpgrad reproduce --record` wrote.
        out: The folder of the entries.
        with_metrics: Keep the whole checkpoint and the meta-losses, so that `restore_run` can give the run back.
    """
    settings, summary = (read_object(run / file) for file in ("config.json", "summary.json"))
    require(isinstance(settings.get("experiment"), str), f"{run} is not a run of an experiment of warpgrad.")
    check_commit(summary.get("commit"), f"the run {run}")
    _, config = stored_config(settings, run / "config.json")
    check_metrics(run)
    weights = read_bytes(newest_checkpoint(run)) if with_metrics else _weights(run, config)
    require(len(weights) <= LARGEST, f"the weights of {run} have {len(weights):,} bytes, more than {LARGEST:,}.")
    card = Card(
        name=check_name(name, "the entry"),
        processor_seconds=summary["processor_seconds"],
        meta_steps=summary["steps"],
        data=_data(config, read_object(run / "evaluation.json")),
        settings=settings,
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        **_on_record(settings, summary, record),
        **{part: summary[part] for part in ("experiment", "method", "preset", "seed", "commit", "command")},
        **{part: summary[part] for part in ("versions", "hardware")},
    )
    write_bytes(out / name / WEIGHTS, weights)
    if with_metrics:
        write_bytes(out / name / METRICS, lzma.compress(read_bytes(run / "metrics.jsonl")))
    write_json(out / name / CARD, dataclasses.asdict(card), seal=True)
    return card


def _weights(run: Path, config: Any) -> bytes:
    """Return a run's method as `wg.save` writes it, without the states of optimisers."""
    method = load(newest_checkpoint(run), find_builder(read_object(run / "config.json")["experiment"])(config).learner)
    with TemporaryDirectory() as folder:
        save(Path(folder) / WEIGHTS, method)
        return read_bytes(Path(folder) / WEIGHTS)


def _on_record(settings: Mapping[str, Any], summary: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the numbers that the record has for these settings, which must equal those of the run."""
    found = read_record(path).find(settings_of(settings))
    if found is None:
        raise WarpgradError(f"{path} has no run with the settings of this run; record this run first.")
    run, _ = found
    numbers = run.summary["metrics"]
    for name, value in summary["metrics"].items():
        require(
            numbers.get(name) == float(f"{value:.7g}"),  # records keep seven digits
            f"{name} is {value} in this run and {numbers.get(name)} in the record {path}: make the record again too.",
        )
    return {
        "numbers": numbers,
        "record": {"file": path.name, "row": run.path.name, "commit": run.summary["commit"]},
    }


def _data(config: Any, evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Describe the data set of a run by its header, or state that there is none."""
    if "data_sha256" not in evaluation:
        return {"name": "none", "source": "tasks drawn by the program", "licence": "none is needed"}
    header = open_prepared(config.data).header
    require(
        header.sha256 == evaluation["data_sha256"],
        f"the data set {header.name} here is not the one that the run was made on; prepare that one.",
    )
    return {"name": header.name, "source": header.source, "licence": header.licence, "sha256": header.sha256}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m warpgrad.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--name", required=True, help="the name of the entry")
    parser.add_argument("--record", type=Path, required=True, help="the record file with the results of the run")
    parser.add_argument("--out", type=Path, default=ENTRIES, help="the folder of the entries")
    parser.add_argument("--with-metrics", action="store_true", help="also keep what is needed to resume the run")
    given = parser.parse_args(words)
    try:
        print(make_entry(given.run, given.name, given.record, given.out, with_metrics=given.with_metrics))
    except WarpgradError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

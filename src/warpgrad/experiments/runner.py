"""A run from settings to summary: train, evaluate, write down what was done, with what, and how long it took."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from warpgrad.data.prepared import content_hash
from warpgrad.errors import NonFiniteError, WarpgradError, require
from warpgrad.experiments.base import C, Config, Execution, Experiment
from warpgrad.experiments.methods import Recipe
from warpgrad.io import READ, digest, read_bytes, read_object, settings_of, write_json
from warpgrad.layers.sentences import weights_hash
from warpgrad.tasks.base import TaskFamily
from warpgrad.training.distributed import RankLostError, current_ranks
from warpgrad.training.meta_train import meta_train
from warpgrad.training.resources import hardware, versions
from warpgrad.training.run_directory import (
    OWNER,
    RunDirectory,
    check_read,
    checkpointed_steps,
    identity,
    reserved,
)
from warpgrad.version import commit as commit

logger = logging.getLogger(__name__)


def stored_settings(experiment: Experiment[C], config: C) -> dict[str, Any]:
    """The config as it stands in config.json."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return {"experiment": experiment.name, **values}


def run_settings(experiment: Experiment[C], config: C, threads: int | None = None) -> dict[str, Any]:
    """The settings of a run that is carried out: with its threads (this process's if None), for they change the order
    of sums and with it the last bits of every number."""
    threads = torch.get_num_threads() if threads is None else threads
    return {**stored_settings(experiment, config), **({} if threads == 1 else {"threads": threads}), **read_by(config)}


def read_by(config: Config) -> dict[str, str]:
    """SHA-256 of what a run reads besides its settings, as far as it is here: a prepared data set, an encoder."""
    found = {
        "data_sha256": content_hash(data) if (data := getattr(config, "data", None)) else None,
        "encoder_sha256": weights_hash(encoder) if (encoder := getattr(config, "encoder", None)) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def check_same_read(directory: Path, config: Config) -> None:
    """Refuse to test a run on data, or with an encoder, that have taken the place of its own under the same name.
    Under another name they are what is asked for."""
    stored = read_object(directory / "config.json")
    named = [name for name in READ if stored.get(what := name.removesuffix("_sha256")) == getattr(config, what, None)]
    check_read({name: stored[name] for name in named if name in stored}, read_by(config), directory)


def meta_trained(
    experiment: Experiment[C], config: C, execution: Execution, recipe: Recipe, tasks: TaskFamily, **scores: Any
) -> int:
    """Meta-train into the run directory, or resume the run there; returns the meta-steps done.

    `scores` are what `meta_train` is to measure on the way: `validate`, `test`, `early_stopping` and how often.
    """
    every = run_settings(experiment, config)
    if recipe.schedule is not None and not execution.fresh:
        check_length(every["meta_steps"], execution.directory)
    records = meta_train(
        recipe.method,
        tasks,
        algorithm=recipe.algorithm,
        optimiser=recipe.optimiser,
        clip=recipe.clip,
        schedule=recipe.schedule,
        meta_steps=every["meta_steps"],
        seed=config.seed,
        run=execution.directory,
        config=every,
        fresh=execution.fresh,
        tensorboard=execution.tensorboard,
        progress=execution.progress,
        **scores,
    )
    return len(records)


def check_length(meta_steps: int, directory: Path) -> None:
    """Refuse to carry a run on whose schedule has brought the step size to 0, or is bound to."""
    path = directory / "config.json"
    planned = read_object(path).get("meta_steps") if path.exists() else meta_steps
    require(
        planned == meta_steps,
        f"the run in {directory} was planned for {planned} meta-steps and its schedule ends there: it cannot be "
        f"carried on to {meta_steps}; choose another directory, or --meta-schedule constant from the start.",
    )


def without_meta_training(experiment: Experiment[C], config: C, execution: Execution) -> int:
    """A run of a method that learns nothing across tasks: a run directory with no meta-steps in it."""
    directory = RunDirectory(execution.directory, run_settings(experiment, config), fresh=execution.fresh)
    try:
        directory.begin_metrics(0)
    finally:
        directory.close()
    return 0


def run_name(experiment: Experiment[C], config: C) -> str:
    """PRESET-METHOD-seedN, with every other setting that differs from the preset: runs that differ never share one."""
    named = ("preset", "method", "seed")
    changed = [f"{name}={value}" for name, value in _changed(experiment, config).items() if name not in named]
    name = "-".join([config.preset, config.method, *changed, f"seed{config.seed}"])
    return "".join(letter if letter.isalnum() or letter in ".+-=_" else "-" for letter in name)


def execute(experiment: Experiment[C], config: C, execution: Execution) -> dict[str, Any]:
    """Train and evaluate; a finished run is not repeated. Returns the summary.

    Where torchrun has started several processes, all train, and rank 0 evaluates, writes and speaks: it alone returns,
    the others end here with the exit code that it will have.
    """
    ranks = current_ranks(check_device(config.device))
    made_by = origin(ranks.size)  # now: the source may be another when the run ends
    try:
        with ranks.share_errors():
            # Rank 0 alone opens the directory; until its summary is written, no other process may change the run.
            with _divergence(), reserved(execution.directory) if ranks.first else nullcontext():
                steps = experiment.train(config, execution)
                summary = ranks.from_first(lambda: conclude(experiment, config, execution.directory, steps, made_by))
            # Whether it could be written is known to all before any goes.
            ranks.total(())
    except RankLostError:
        raise
    except WarpgradError as error:
        if not ranks.first:
            raise SystemExit(error.exit_code) from error
        raise
    if not ranks.first:
        raise SystemExit(0)
    return summary


@contextmanager
def _divergence() -> Iterator[None]:
    """A matrix that cannot be inverted or factorised any more is how KFAC diverges."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NonFiniteError(f"{str(error).rstrip('.')}; take smaller steps or more damping.") from error


def origin(processes: int) -> dict[str, Any]:
    """What the numbers are made by and on."""
    return {"versions": versions(), "commit": commit(), "hardware": {**hardware(), "processes": processes}}


def conclude(
    experiment: Experiment[C], config: C, directory: Path, steps: int, made_by: Mapping[str, Any]
) -> dict[str, Any]:
    """Evaluate a trained run and sum it up, unless that is done; `made_by` as from `origin`."""
    if (found := concluded(experiment, config, directory)) is not None and found["steps"] == steps:
        return found
    evaluation = evaluate_run(experiment, config, directory)
    summary = {
        "experiment": experiment.name,
        "method": config.method,
        "preset": config.preset,
        "seed": config.seed,
        "steps": steps,
        "metrics": evaluation["metrics"],
        **training_seconds(directory),
        "evaluation_seconds": evaluation["seconds"],
        "evaluation_processor_seconds": evaluation["processor_seconds"],
        **made_by,
        "command": command(experiment, config),
        "settings": digest(settings_of(run_settings(experiment, config))),
        OWNER: identity(read_object(directory / "config.json")),
    }
    write_json(directory / "summary.json", summary, seal=True)
    return summary


def concluded(
    experiment: Experiment[C], config: C, directory: Path, threads: int | None = None
) -> dict[str, Any] | None:
    """The summary of a run that has ended under these very settings; None where there is none, or of fewer meta-steps
    than there are now. One that is damaged is none, and said."""
    if not all((directory / name).exists() for name in ("summary.json", "evaluation.json", "config.json")):
        return None
    stored, asked = read_object(directory / "config.json"), run_settings(experiment, config, threads)
    check_read(stored, asked, directory)
    owner, kept, asked = identity(stored), settings_of(stored), settings_of(asked)
    try:
        summary, evaluation = (read_object(directory / name) for name in ("summary.json", "evaluation.json"))
    except WarpgradError as error:
        logger.warning("%s It is made again.", error)
        return None
    own = {name: asked[name] for name in ("experiment", "method", "preset", "seed")}
    same = (
        kept == asked
        and _is_summary(summary)
        and summary.get("settings", digest(asked)) == digest(asked)
        and all(part.get(OWNER, owner) == owner for part in (summary, evaluation))
        and {name: summary.get(name) for name in own} == own
        and summary.get("steps") == evaluation.get("after_meta_steps", summary.get("steps"))
        and summary.get("steps") in (checkpointed_steps(directory), kept.get("meta_steps"))
    )
    return summary if same else None


def _is_summary(summary: Mapping[str, Any]) -> bool:
    """Whether what stands in summary.json can be told as a result: meta-steps, and numbers by name."""
    metrics = summary.get("metrics")
    return (
        type(summary.get("steps")) is int
        and isinstance(metrics, dict)
        and all(isinstance(value, float | int) for value in metrics.values())
    )


def evaluate_run(experiment: Experiment[C], config: C, directory: Path) -> dict[str, Any]:
    """Test a trained run and keep the result beside it."""
    began, worked = time.monotonic(), time.process_time()
    evaluation = experiment.evaluate(config, directory)
    evaluation["seconds"] = time.monotonic() - began
    evaluation["processor_seconds"] = time.process_time() - worked
    of = {"after_meta_steps": checkpointed_steps(directory), OWNER: identity(read_object(directory / "config.json"))}
    write_json(directory / "evaluation.json", {**evaluation, **of}, seal=True)
    return evaluation


def training_seconds(directory: Path) -> dict[str, float]:
    """Wall time of meta-training with all that is scored on its way, and processor time of its meta-steps alone."""
    records = [json.loads(line) for line in read_bytes(directory / "metrics.jsonl").splitlines()]
    scored = ("validation_seconds", "test_seconds")
    wall = sum(record["seconds"] + sum(record.get(name, 0.0) for name in scored) for record in records)
    return {"wall_seconds": float(wall), "processor_seconds": float(sum(record["cpu_seconds"] for record in records))}


def check_device(name: str) -> torch.device:
    """The device, if this machine has it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise WarpgradError(f"device '{name}' is not available here; use --device cpu.") from error
    return device


def command(experiment: Experiment[C], config: C) -> str:
    """The command that makes this run, to be typed into a shell."""
    return shlex.join(["warpgrad", *command_words(experiment, config)])


def command_words(experiment: Experiment[C], config: C) -> list[str]:
    """The run as words, with every setting that differs from the preset."""
    changed = [word for name, value in _changed(experiment, config).items() for word in option(name, value)]
    return ["run", experiment.name, "--preset", config.preset, *changed]


def _changed(experiment: Experiment[C], config: C) -> dict[str, Any]:
    """The settings that differ from the preset's for this method, and the method where it is not the preset's own."""
    base = {**vars(experiment.preset(config.preset, config.method)), "method": experiment.preset(config.preset).method}
    return {name: value for name, value in vars(config).items() if value != base[name]}


def option(name: str, value: Any) -> list[str]:
    """One setting as command-line words."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else "--no-" + name.replace("_", "-")]
    if isinstance(value, tuple | list):
        return [flag, *(str(item) for item in value)]
    return [flag, str(value)]


def python_command(experiment: Experiment[C], config: C, directory: Path) -> list[str]:
    """The same run as a process of its own."""
    words = command_words(experiment, config)
    return [sys.executable, "-m", "warpgrad", *words, "--out", str(directory), "--quiet"]

"""A run from settings to summary: train, evaluate, and write down what was run, with what, and how long it took."""

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

from warpgrad.errors import NonFiniteError, WarpgradError, require
from warpgrad.experiments.base import C, Execution, Experiment
from warpgrad.experiments.methods import Recipe
from warpgrad.io import CONTENT, contents_of, digest, read_bytes, read_object, settings_of, write_json
from warpgrad.tasks.base import TaskFamily
from warpgrad.training.distributed import RankLostError, current_ranks
from warpgrad.training.meta_train import meta_train
from warpgrad.training.resources import hardware, versions
from warpgrad.training.run_directory import (
    OWNER,
    RunDirectory,
    check_place,
    check_read,
    checkpointed_steps,
    identity,
    reserved,
)
from warpgrad.version import commit as commit

logger = logging.getLogger(__name__)


def stored_settings(experiment: Experiment[C], config: C) -> dict[str, Any]:
    """Return the config as JSON values, as config.json stores it."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return {"experiment": experiment.name, **values}


def run_settings(experiment: Experiment[C], config: C, threads: int | None = None) -> dict[str, Any]:
    """Return the settings of an actual run: with its number of threads (this process's if None), because it changes the
    order of sums and thus the last bits of every number, and with the checksums of what it reads."""
    threads = torch.get_num_threads() if threads is None else threads
    read = {f"{name}{CONTENT}": content for name, content in experiment.reads(config).items() if content is not None}
    return {**stored_settings(experiment, config), **({} if threads == 1 else {"threads": threads}), **read}


def check_same_read(experiment: Experiment[C], config: C, directory: Path) -> None:
    """Refuse to test a run if its data or encoder has been replaced by another one under the same name.

    Under a different name, the replacement is intended.
    """
    stored, now = read_object(directory / "config.json"), run_settings(experiment, config)
    same = {name for name in contents_of(stored) if stored[what := name.removesuffix(CONTENT)] == now.get(what)}
    check_read(stored, {name: value for name, value in now.items() if name in same}, directory)


def meta_trained(
    experiment: Experiment[C], config: C, execution: Execution, recipe: Recipe, tasks: TaskFamily, **scores: Any
) -> int:
    """Meta-train into the run directory, or resume the run there, and return the number of meta-steps done.

    `scores` are the arguments of `meta_train` for scoring: `validate`, `test`, `early_stopping` and how often.
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
    """Refuse to extend a run beyond its schedule, which takes the step size to 0 at the planned end."""
    path = directory / "config.json"
    planned = read_object(path).get("meta_steps") if path.exists() else meta_steps
    require(
        planned == meta_steps,
        f"the run in {directory} was planned for {planned} meta-steps and its schedule ends there: it cannot be "
        f"extended to {meta_steps}; choose another directory, or --meta-schedule constant from the start.",
    )


def without_meta_training(experiment: Experiment[C], config: C, execution: Execution) -> int:
    """Create the run directory of a method that is not meta-trained, and return its number of meta-steps, 0."""
    directory = RunDirectory(execution.directory, run_settings(experiment, config), fresh=execution.fresh)
    try:
        directory.begin_metrics(0)
    finally:
        directory.close()
    return 0


def run_name(experiment: Experiment[C], config: C) -> str:
    """Return PRESET-METHOD-seedN with all other settings that differ from the preset, so that names are unique."""
    named = ("preset", "method", "seed")
    changed = [f"{name}={value}" for name, value in _changed(experiment, config).items() if name not in named]
    name = "-".join([config.preset, config.method, *changed, f"seed{config.seed}"])
    return "".join(letter if letter.isalnum() or letter in ".+-=_" else "-" for letter in name)


def execute(experiment: Experiment[C], config: C, execution: Execution) -> dict[str, Any]:
    """Train and evaluate a run unless it is finished, and return its summary.

    If torchrun has started several processes, all of them train, and rank 0 evaluates, writes and prints. Only rank 0
    returns; the others exit here with the same exit code.
    """
    ranks = current_ranks(check_device(config.device))
    made_by = origin(ranks.size)  # now, because the source may have changed when the run ends
    try:
        with ranks.share_errors():
            # Rank 0 alone opens the directory; until its summary is written, no other process may change the run.
            with _divergence(), reserved(execution.directory) if ranks.first else nullcontext():
                steps = experiment.train(config, execution)
                summary = ranks.from_first(lambda: conclude(experiment, config, execution.directory, steps, made_by))
            # All ranks learn whether the summary could be written before any of them exits.
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
    """Convert errors of linear algebra to `NonFiniteError`: KFAC diverges by a matrix that cannot be factorised."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NonFiniteError(f"{str(error).rstrip('.')}; take smaller steps or more damping.") from error


def origin(processes: int) -> dict[str, Any]:
    """Return the versions, the commit and the hardware that produce the results."""
    return {"versions": versions(), "commit": commit(), "hardware": {**hardware(), "processes": processes}}


def conclude(
    experiment: Experiment[C], config: C, directory: Path, steps: int, made_by: Mapping[str, Any]
) -> dict[str, Any]:
    """Evaluate a trained run and write its summary, unless that is done; `made_by` is what `origin` returned."""
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
    check_place(directory)
    write_json(directory / "summary.json", summary, seal=True)
    return summary


def concluded(
    experiment: Experiment[C], config: C, directory: Path, threads: int | None = None
) -> dict[str, Any] | None:
    """Return the summary of a finished run with exactly these settings, or None.

    A summary that was written after fewer meta-steps than there are now does not count, nor does a damaged one, which
    is logged.
    """
    if not all((directory / name).exists() for name in ("summary.json", "evaluation.json", "config.json")):
        return None
    stored, asked = read_object(directory / "config.json"), run_settings(experiment, config, threads)
    check_read(stored, asked, directory)
    owner, kept, asked = identity(stored), settings_of(stored), settings_of(asked)
    try:
        summary, evaluation = (read_object(directory / name) for name in ("summary.json", "evaluation.json"))
    except WarpgradError as error:
        logger.warning("%s The result is computed again.", error)
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
    """Return whether the content of summary.json is a result: a number of meta-steps, and some metrics, all numbers."""
    metrics = summary.get("metrics")
    return (
        type(summary.get("steps")) is int
        and isinstance(metrics, dict)
        and bool(metrics)
        and all(isinstance(value, float | int) for value in metrics.values())
    )


def evaluate_run(experiment: Experiment[C], config: C, directory: Path) -> dict[str, Any]:
    """Test a trained run and write the result to its evaluation.json."""
    began, worked = time.monotonic(), time.process_time()
    evaluation = experiment.evaluate(config, directory)
    evaluation["seconds"] = time.monotonic() - began
    evaluation["processor_seconds"] = time.process_time() - worked
    of = {"after_meta_steps": checkpointed_steps(directory), OWNER: identity(read_object(directory / "config.json"))}
    check_place(directory)
    write_json(directory / "evaluation.json", {**evaluation, **of}, seal=True)
    return evaluation


def training_seconds(directory: Path) -> dict[str, float]:
    """Return the wall time of meta-training, including validations and tests, and the processor time of meta-steps."""
    records = [json.loads(line) for line in read_bytes(directory / "metrics.jsonl").splitlines()]
    scored = ("validation_seconds", "test_seconds")
    wall = sum(record["seconds"] + sum(record.get(name, 0.0) for name in scored) for record in records)
    return {"wall_seconds": float(wall), "processor_seconds": float(sum(record["cpu_seconds"] for record in records))}


def check_device(name: str) -> torch.device:
    """Return the device, or raise if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise WarpgradError(f"device '{name}' is not available here; use --device cpu.") from error
    return device


def command(experiment: Experiment[C], config: C) -> str:
    """Return the shell command that makes this run."""
    return shlex.join(["warpgrad", *command_words(experiment, config)])


def command_words(experiment: Experiment[C], config: C) -> list[str]:
    """Return the arguments of `warpgrad` for this run, with every setting that differs from the preset."""
    changed = [word for name, value in _changed(experiment, config).items() for word in option(name, value)]
    return ["run", experiment.name, "--preset", config.preset, *changed]


def _changed(experiment: Experiment[C], config: C) -> dict[str, Any]:
    """Return the settings that differ from the preset's for this method, and the method if it is not the preset's."""
    base = {**vars(experiment.preset(config.preset, config.method)), "method": experiment.preset(config.preset).method}
    return {name: value for name, value in vars(config).items() if value != base[name]}


def option(name: str, value: Any) -> list[str]:
    """Return one setting as command-line arguments."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else "--no-" + name.replace("_", "-")]
    if isinstance(value, tuple | list):
        return [flag, *(str(item) for item in value)]
    return [flag, str(value)]


def python_command(experiment: Experiment[C], config: C, directory: Path) -> list[str]:
    """Return the command that makes this run in a separate process."""
    words = command_words(experiment, config)
    return [sys.executable, "-m", "warpgrad", *words, "--out", str(directory), "--quiet"]

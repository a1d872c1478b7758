"""The commands that list, run and evaluate, and helpers that commands share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from warpgrad.errors import printable, require
from warpgrad.experiments import DECLARATIONS, Config, Declaration, Execution, find_experiment, stored_config
from warpgrad.experiments.settings_file import read_settings
from warpgrad.io import read_object, write_json

RUN = """Meta-train and evaluate; repeat the command to resume where it stopped.

Example: warpgrad run synthetic --preset small --seed 3"""


def list_command() -> None:
    """List the experiments with their methods, presets and tables.

    Example: warpgrad list
    """
    for experiment in DECLARATIONS.values():
        print(f"{experiment.name}  ({experiment.section})  {experiment.summary}")
        print(f"  methods: {', '.join(experiment.methods)}")
        print(f"  presets: {', '.join(experiment.presets)}")
        for table in experiment.tables:
            print(f"  table {table.name}: {table.title}; {len(table.rows)} rows × {table.seeds} seeds")


def run_command(
    settings: Config,
    *,
    declared: Declaration[Any],
    out: Path | None = None,
    config: Path | None = None,
    estimate: bool = False,
    flops: float | None = None,
    ranks: int = 1,
    fresh: bool = False,
    threads: int = 1,
    timeout: float | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
) -> None:
    """Meta-train and evaluate one experiment.

    Args:
        settings: The experiment's settings; of what follows, the threads alone change its numbers.
        declared: The experiment.
        out: The run directory. Without it, runs/EXPERIMENT/PRESET-METHOD-seedN and whatever differs from the preset.
        config: A JSON file of settings over the preset, such as a sweep's best.json. Options on the command line
            override it.
        estimate: Do not run, but predict time, memory and replay buffer from a few steps at these sizes.
        flops: With --estimate, the floating-point operations per second of each process elsewhere, to predict the time
            there.
        ranks: With --estimate, the number of processes that share the work elsewhere.
        fresh: Delete an earlier run in the directory and start over.
        threads: The number of threads of this process. They change the order of sums and so the last bits of numbers,
            which training magnifies: a run can be resumed only with the number of threads it started with.
        timeout: Under torchrun, the seconds that a process waits for the others. Without it, WARPGRAD_TIMEOUT, or 1800.
        tensorboard: Also write TensorBoard events.
        quiet: Show no progress.
    """
    del config  # `initial_settings` has read it
    # Imported here because the help text, which exits before this, needs no torch.
    from warpgrad.experiments import runner
    from warpgrad.training.distributed import current_ranks

    experiment = find_experiment(declared.name)
    checked = experiment.check(settings)
    _set_threads(threads)
    device = runner.check_device(checked.device)
    if estimate:
        from warpgrad.experiments.estimate import estimate_lines

        print("\n".join(estimate_lines(experiment, checked, flops=flops, ranks=ranks)))
        return
    require(
        flops is None and ranks == 1,
        "--flops and --ranks apply only to --estimate; give it too, or start several processes with torchrun.",
    )
    current_ranks(device, timeout=timeout)
    directory = out or Path("runs") / experiment.name / runner.run_name(experiment, checked)
    summary = runner.execute(experiment, checked, Execution(directory, fresh, tensorboard, not quiet))
    print(
        f"{experiment.name}, {checked.method}, preset {checked.preset}, seed {checked.seed}: "
        f"{summary['steps']} meta-steps"
    )
    print_metrics(summary["metrics"])
    print(f"run directory: {printable(directory)}")


def evaluate_command(
    settings: Config | None = None,
    *,
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    declared: Declaration[Any],
    out: Path | None = None,
    threads: int | None = None,
) -> None:
    """Test a run again, optionally with other test settings; `warpgrad evaluate RUN --help` lists them.

    Example: warpgrad evaluate runs/synthetic/paper-warpgrad-seed3 --test-surfaces 500

    Args:
        settings: The run's settings, to be changed.
        run: The run directory.
        declared: The experiment that the run is of.
        out: A file for the result. Without it, the run's own evaluation.json where no setting was changed.
        threads: The number of threads of this process. Without it, those of the run.
    """
    from warpgrad.experiments import runner
    from warpgrad.training.run_directory import reserved

    own = read_object(run / "config.json").get("threads", 1)
    threads = own if threads is None else threads
    _set_threads(threads)
    experiment = find_experiment(declared.name)
    changed = experiment.check(settings)
    runner.check_same_read(experiment, changed, run)
    runner.check_device(changed.device)
    if changed == run_config(run)[1] and threads == own and out is None:
        with reserved(run):
            result = runner.evaluate_run(experiment, changed, run)
    else:
        result = experiment.evaluate(changed, run)
        if out is not None:
            write_json(out, {"config": runner.stored_settings(experiment, changed), **result}, seal=True)
    print_metrics(result["metrics"])


def initial_settings(declared: Declaration[Any], words: Sequence[str]) -> Config:
    """Return the defaults of the options: the preset and method that the command line names, changed by its file."""
    # tyro parses all three again; but they determine the defaults, which it needs before it parses anything.
    flat = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    named = dict(pairwise(flat))
    changes = read_settings(Path(named["--config"]), declared) if "--config" in named else {}
    preset = named.get("--preset") or changes.get("preset") or next(iter(declared.presets))
    method = named.get("--method") or changes.get("method")
    settings: Config = dataclasses.replace(declared.preset(preset, method), **{**changes, "preset": preset})
    return settings


def of_experiment(directory: Path) -> bool:
    """Return whether `warpgrad run` made the run in a directory, rather than `meta_train` in a user's program."""
    return isinstance(read_object(directory / "config.json").get("experiment"), str)


def run_config(directory: Path) -> tuple[Declaration[Any], Any]:
    """Return the experiment that a run directory belongs to, and its settings."""
    kept = read_object(directory / "config.json")
    require(
        of_experiment(directory),
        f"{directory} was made by your own program with meta_train(run=...), which alone knows its model and tasks; "
        f"load it there with wg.load_run({str(directory)!r}, learner).",
    )
    return stored_config(kept, directory / "config.json")


def _set_threads(threads: int) -> None:
    require(
        isinstance(threads, int) and 1 <= threads <= 4096,
        f"threads={threads}: it must be a number of threads from 1 to 4096.",
    )
    import torch

    torch.set_num_threads(threads)


def print_metrics(metrics: dict[str, float]) -> None:
    """Print named numbers to the terminal, one per line."""
    width = max(len(name) for name in metrics)
    for name, value in metrics.items():
        print(f"  {printable(name):<{width}}  {value if isinstance(value, int) else format(value, '.4g')}")


def print_rows(header: list[str], rows: list[list[str]], title: str) -> None:
    """Print a table to the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As `Text`, because names are not markup.
    table = Table(title=Text(printable(title)))
    for place, name in enumerate(header):
        table.add_column(Text(printable(name)), justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None).print(table)

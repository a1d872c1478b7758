"""The commands that list, run and evaluate, and what commands share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from warpgrad.cli.main import parse
from warpgrad.errors import WarpgradError, printable
from warpgrad.experiments import DECLARATIONS, Config, Declaration, Execution, find_declaration, find_experiment
from warpgrad.experiments.settings_file import read_settings
from warpgrad.io import read_object, write_json

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class RunOptions:
    """How to carry the run out; of these, the threads alone change its numbers."""

    out: Path | None = None
    """Run directory; runs/EXPERIMENT/PRESET-METHOD-seedN, with what differs from the preset, if not given."""
    config: Path | None = None
    """JSON file of settings over the preset, such as a sweep's best.json; options given here win over it."""
    estimate: bool = False
    """Do not run: predict time, memory and replay buffer from a few steps at these sizes."""
    flops: float | None = None
    """With --estimate: floating-point operations per second of each process elsewhere, to predict the time there."""
    ranks: int = 1
    """With --estimate: processes that share the work elsewhere."""
    fresh: bool = False
    """Delete an earlier run there and start over."""
    threads: int = 1
    """Threads of this process. They change the order of sums and so the last bits of numbers, which training then
    magnifies: a run goes on only with the threads it began with."""
    timeout: float | None = None
    """Under torchrun: seconds that a process waits for the others in an exchange; WARPGRAD_TIMEOUT, or 1800, if not
    given."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class RunArguments(Generic[C]):
    config: tyro.conf.OmitArgPrefixes[C]
    options: tyro.conf.OmitArgPrefixes[RunOptions] = field(default_factory=RunOptions)


def list_experiments(words: list[str]) -> None:
    """Experiments, methods, presets and tables."""
    if words:
        raise WarpgradError(f"'warpgrad list' takes no options, not {words[0]!r}.")
    for experiment in DECLARATIONS.values():
        print(f"{experiment.name}  ({experiment.section})  {experiment.summary}")
        print(f"  methods: {', '.join(experiment.methods)}")
        print(f"  presets: {', '.join(experiment.presets)}")
        for table in experiment.tables:
            print(f"  table {table.name}: {table.title}; {len(table.rows)} rows × {table.seeds} seeds")


def run(words: list[str]) -> None:
    """`warpgrad run EXPERIMENT [--preset P] [options]`."""
    declared, rest = named_experiment(words, "run")
    file = given_word(rest, "--config")
    changes = read_settings(Path(file), declared) if file is not None else {}
    # The preset is looked up first, because it is what all other settings change.
    preset = given_word(rest, "--preset") or changes.get("preset") or next(iter(declared.presets))
    base = dataclasses.replace(declared.preset(preset), **{**changes, "preset": preset})
    program = f"warpgrad run {declared.name}"
    given: Any = parse(RunArguments[type(base)], rest, program, RunArguments(base))  # type: ignore[misc]
    # Only now: the help text, which ends in `parse`, needs no torch.
    from warpgrad.experiments import runner
    from warpgrad.training.distributed import current_ranks

    experiment = find_experiment(declared.name)
    config, options = experiment.check(given.config), given.options
    _set_threads(options.threads)
    if options.estimate:
        from warpgrad.experiments.estimate import estimate_lines

        print("\n".join(estimate_lines(experiment, config, flops=options.flops, ranks=options.ranks)))
        return
    if options.flops is not None or options.ranks != 1:
        raise WarpgradError(
            "--flops and --ranks only predict; give --estimate too, or start several processes with torchrun."
        )
    current_ranks(runner.check_device(config.device), timeout=options.timeout)
    directory = options.out or runner.default_directory(experiment, config)
    execution = Execution(directory, options.fresh, options.tensorboard, not options.quiet)
    summary = runner.execute(experiment, config, execution)
    print(
        f"{experiment.name}, {config.method}, preset {config.preset}, seed {config.seed}: {summary['steps']} meta-steps"
    )
    _print_metrics(summary["metrics"])
    print(f"run directory: {printable(directory)}")


@dataclass(frozen=True)
class EvaluateArguments(Generic[C]):
    config: tyro.conf.OmitArgPrefixes[C]
    out: Path | None = None
    """File for the result; the run's own evaluation.json where no setting was changed."""
    threads: int | None = None
    """Threads of this process; those of the run if not given."""


def evaluate(words: list[str]) -> None:
    """`warpgrad evaluate RUN [options]`: options change the run's test settings."""
    if not words or words[0].startswith("-"):
        raise WarpgradError("name the run directory: warpgrad evaluate RUN [options].")
    directory = Path(words[0])
    declared, config = run_config(directory)
    own = read_object(directory / "config.json").get("threads", 1)
    program = f"warpgrad evaluate {directory}"
    given: Any = parse(EvaluateArguments[type(config)], words[1:], program, EvaluateArguments(config))  # type: ignore[misc]
    from warpgrad.experiments import runner
    from warpgrad.training.run_directory import reserved

    threads = own if given.threads is None else given.threads
    _set_threads(threads)
    experiment = find_experiment(declared.name)
    changed = experiment.check(given.config)
    if changed == config and threads == own and given.out is None:
        with reserved(directory):
            result = runner.evaluate(experiment, config, directory)
    else:
        runner.check_device(changed.device)
        result = experiment.evaluate(changed, directory)
        if given.out is not None:
            write_json(given.out, {"config": runner.settings(experiment, changed), **result})
    _print_metrics(result["metrics"])


def named_experiment(words: list[str], command: str) -> tuple[Declaration[Any], list[str]]:
    """What the experiment that the first word names declares, and the other words."""
    if not words or words[0].startswith("-"):
        raise WarpgradError(f"name the experiment: warpgrad {command} EXPERIMENT, one of {', '.join(DECLARATIONS)}.")
    return find_declaration(words[0]), words[1:]


def given_word(words: list[str], flag: str) -> str | None:
    """The value of an option that is needed before the others can be understood."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def run_config(directory: Path) -> tuple[Declaration[Any], Any]:
    """The experiment that a run directory is of, and its settings."""
    kept = read_object(directory / "config.json")
    if not isinstance(kept.get("experiment"), str):
        raise WarpgradError(f"{directory / 'config.json'} names no experiment: was it made by 'warpgrad run'?")
    experiment = find_declaration(kept["experiment"])
    preset = next(iter(experiment.presets.values()))
    known = {item.name for item in dataclasses.fields(preset)}
    given = {name: value for name, value in kept.items() if name not in ("experiment", "format", "threads")}
    unknown = sorted(set(given) ^ known)
    if unknown:
        raise WarpgradError(
            f"{directory / 'config.json'} does not fit this version of {experiment.name} (setting '{unknown[0]}'); "
            "use the version that wrote it, or run it again with --fresh."
        )
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return experiment, dataclasses.replace(preset, **frozen)


def _set_threads(threads: int) -> None:
    if not isinstance(threads, int) or not 1 <= threads <= 4096:
        raise WarpgradError(f"threads={threads}: it must be a number of threads from 1 to 4096.")
    import torch

    torch.set_num_threads(threads)


def _print_metrics(metrics: dict[str, float]) -> None:
    width = max(len(name) for name in metrics)
    for name, value in metrics.items():
        print(f"  {printable(name):<{width}}  {value if isinstance(value, int) else format(value, '.4g')}")


def print_rows(header: list[str], rows: list[list[str]], title: str) -> None:
    """A table on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As text: names are no markup.
    table = Table(title=Text(printable(title)))
    for place, name in enumerate(header):
        table.add_column(Text(printable(name)), justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None).print(table)

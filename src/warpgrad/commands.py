"""What each command of the command line does."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import tyro

from warpgrad.cli import parse
from warpgrad.engine.distributed import joined
from warpgrad.engine.files import read_json, write_json
from warpgrad.errors import WarpgradError
from warpgrad.estimate import estimate_lines
from warpgrad.experiments import EXPERIMENTS, Config, Execution, Experiment, Group, find_experiment, find_table, runner
from warpgrad.experiments.reproduction import reproduce as reproduce_table
from warpgrad.experiments.settings_file import read_settings

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class RunOptions:
    """How to carry the run out; nothing here changes its numbers."""

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
    """Threads of this process."""
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
    for experiment in EXPERIMENTS.values():
        print(f"{experiment.name}  ({experiment.section})  {experiment.summary}")
        print(f"  methods: {', '.join(experiment.methods)}")
        print(f"  presets: {', '.join(experiment.presets)}")
        for table in experiment.tables:
            print(f"  table {table.name}: {table.title}; {len(table.rows)} rows × {table.seeds} seeds")


def run(words: list[str]) -> None:
    """`warpgrad run EXPERIMENT [--preset P] [options]`."""
    experiment, rest = named_experiment(words, "run")
    file = given_word(rest, "--config")
    changes = read_settings(Path(file), experiment) if file is not None else {}
    # The preset is looked up first, because it is what all other settings change.
    preset = given_word(rest, "--preset") or changes.get("preset") or next(iter(experiment.presets))
    base = dataclasses.replace(experiment.config(preset), **{**changes, "preset": preset})
    program = f"warpgrad run {experiment.name}"
    given: Any = parse(RunArguments[type(base)], rest, program, RunArguments(base))  # type: ignore[misc]
    config, options = experiment.check(given.config), given.options
    _set_threads(options.threads)
    if options.estimate:
        print("\n".join(estimate_lines(experiment, config, flops=options.flops, ranks=options.ranks)))
        return
    if options.flops is not None or options.ranks != 1:
        raise WarpgradError(
            "--flops and --ranks only predict; give --estimate too, or start several processes with torchrun."
        )
    joined(runner.check_device(config.device), timeout=options.timeout)
    directory = options.out or runner.default_directory(experiment, config)
    execution = Execution(directory, options.fresh, options.tensorboard, not options.quiet)
    summary = runner.execute(experiment, config, execution)
    print(
        f"{experiment.name}, {config.method}, preset {config.preset}, seed {config.seed}: {summary['steps']} meta-steps"
    )
    _print_metrics(summary["metrics"])
    print(f"run directory: {directory}")


@dataclass(frozen=True)
class EvaluateArguments(Generic[C]):
    config: tyro.conf.OmitArgPrefixes[C]
    out: Path | None = None
    """File for the result; the run's own evaluation.json where no setting was changed."""
    threads: int = 1
    """Threads of this process."""


def evaluate(words: list[str]) -> None:
    """`warpgrad evaluate RUN [options]`: options change the run's test settings."""
    if not words or words[0].startswith("-"):
        raise WarpgradError("name the run directory: warpgrad evaluate RUN [options].")
    directory = Path(words[0])
    experiment, config = _run_config(directory)
    program = f"warpgrad evaluate {directory}"
    given: Any = parse(EvaluateArguments[type(config)], words[1:], program, EvaluateArguments(config))  # type: ignore[misc]
    _set_threads(given.threads)
    changed = experiment.check(given.config)
    if changed == config and given.out is None:
        result = runner.evaluate(experiment, config, directory)
    else:
        runner.check_device(changed.device)
        result = experiment.evaluate(changed, directory)
        if given.out is not None:
            write_json(given.out, {"config": runner.settings(experiment, changed), **result})
    _print_metrics(result["metrics"])


@dataclass(frozen=True)
class ReportArguments:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    out: Path = Path("report.html")
    """The page."""


def report(words: list[str]) -> None:
    """`warpgrad report RUN... [--out PAGE]`."""
    given: ReportArguments = parse(ReportArguments, words, "warpgrad report")
    if not given.runs:
        raise WarpgradError("name at least one run directory: warpgrad report RUN...")
    experiments = {experiment.name: experiment for experiment, _ in map(_run_config, given.runs)}
    if len(experiments) > 1:
        from warpgrad.report import load_run, run_page

        page = run_page([load_run(path) for path in given.runs])
    else:
        (experiment,) = experiments.values()
        page = experiment.page(_groups(given.runs), f"{experiment.name}: {experiment.summary}")
    print(page.write(given.out))


@dataclass(frozen=True)
class ReproduceArguments:
    table: tyro.conf.Positional[str]
    """The table; `warpgrad list` names them."""
    preset: str | None = None
    """Another preset than the table's own."""
    seeds: int | None = None
    """The same number of seeds for every row, instead of the table's own."""
    workers: int = 2
    """Processes of one thread each."""
    out: Path | None = None
    """Where its runs and, in a folder of the table's name, its page go; runs/EXPERIMENT if not given."""
    record: Path | None = None
    """Also write configs, seeds, results and commands of all runs into this one file."""


def reproduce(words: list[str]) -> None:
    """`warpgrad reproduce TABLE`: run what is missing, then build the table and its page."""
    given: ReproduceArguments = parse(ReproduceArguments, words, "warpgrad reproduce")
    table = find_table(given.table)
    experiment = find_experiment(table.experiment)
    preset = given.preset or table.preset
    if given.seeds is not None and given.seeds < 1:
        raise WarpgradError(f"seeds={given.seeds}: at least 1 seed must be run.")
    root = given.out or Path("runs") / experiment.name
    groups = reproduce_table(experiment, table, root, preset=preset, seeds=given.seeds, workers=given.workers)
    page = experiment.page(groups, table.title)
    index = page.write(root / table.name / "index.html")
    page.write_figures(root / table.name / "figures")
    if given.record is not None:
        _record(given.record, groups, experiment.recorded)
    print_rows(*experiment.lines(groups), f"{table.title} (preset {preset})")
    print(f"page: {index}")


@dataclass(frozen=True)
class DemoArguments:
    seeds: int = 4
    """Meta-seeds of the synthetic experiment; the alphabets take half as many."""
    workers: int = 2
    """Processes of one thread each."""
    out: Path = Path("runs/demo")
    """Where the runs and the pages go."""


def demo(words: list[str]) -> None:
    """`warpgrad demo`: the synthetic experiment at the paper's settings, and drawn alphabets; tables and pages."""
    given: DemoArguments = parse(DemoArguments, words, "warpgrad demo")
    for table, seeds in (("synthetic", given.seeds), ("omniglot-demo", max(1, given.seeds // 2))):
        reproduce([table, "--seeds", str(seeds), "--workers", str(given.workers), "--out", str(given.out)])


def named_experiment(words: list[str], command: str) -> tuple[Experiment[Any], list[str]]:
    if not words or words[0].startswith("-"):
        raise WarpgradError(f"name the experiment: warpgrad {command} EXPERIMENT, one of {', '.join(EXPERIMENTS)}.")
    return find_experiment(words[0]), words[1:]


def given_word(words: list[str], flag: str) -> str | None:
    """The value of an option that is needed before the others can be understood."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def _run_config(directory: Path) -> tuple[Experiment[Any], Any]:
    """The experiment and the settings of a run directory."""
    kept = read_json(directory / "config.json")
    if not isinstance(kept, dict) or "experiment" not in kept:
        raise WarpgradError(f"{directory / 'config.json'} names no experiment: was it made by 'warpgrad run'?")
    experiment = find_experiment(kept["experiment"])
    preset = next(iter(experiment.presets.values()))
    known = {item.name for item in dataclasses.fields(preset)}
    given = {name: value for name, value in kept.items() if name not in ("experiment", "format")}
    unknown = sorted(set(given) ^ known)
    if unknown:
        raise WarpgradError(
            f"{directory / 'config.json'} does not fit this version of {experiment.name} (setting '{unknown[0]}'); "
            "use the version that wrote it, or run it again with --fresh."
        )
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return experiment, dataclasses.replace(preset, **frozen)


def _groups(paths: tuple[Path, ...]) -> list[Group]:
    """Runs that differ in nothing but the seed, together."""
    from warpgrad.report.runs import load_run

    found: dict[str, list[Path]] = {}
    for path in paths:
        config = {name: value for name, value in read_json(path / "config.json").items() if name != "seed"}
        found.setdefault(json.dumps(config, sort_keys=True), []).append(path)
    groups = []
    for members in found.values():
        runs = tuple(load_run(path) for path in members)
        evaluations = tuple(read_json(path / "evaluation.json") for path in members)
        groups.append(Group(f"{runs[0].method}, {runs[0].preset}", runs, evaluations))
    return groups


def _record(path: Path, groups: list[Group], recorded: tuple[str, ...]) -> None:
    rows = []
    for group in groups:
        for run, evaluation in zip(group.runs, group.evaluations, strict=True):
            kept = {name: evaluation[name] for name in recorded}
            # The learning curve: every validation, and the last meta-step.
            validated = [line for line in run.metrics[:-1] if any(name.startswith("validation/") for name in line)]
            curve = [*validated, *run.metrics[-1:]]
            row = {"label": group.label, "config": run.config, "summary": run.summary, "metrics": curve}
            rows.append({**row, "evaluation": kept} if kept else row)
    write_json(path, rows)


def _set_threads(threads: int) -> None:
    if threads < 1:
        raise WarpgradError(f"threads={threads}: at least 1 thread must work.")
    torch.set_num_threads(threads)


def _print_metrics(metrics: dict[str, float]) -> None:
    width = max(len(name) for name in metrics)
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value if isinstance(value, int) else format(value, '.4g')}")


def print_rows(header: list[str], rows: list[list[str]], title: str) -> None:
    """A table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None).print(table)

"""`evaluate` for a run that a user's program made: the program says what the run is tested on.

    def held_out():                                     # in mine.py
        return build_learner(), [sine(seed) for seed in range(1000, 1100)]

    warpgrad evaluate runs/mine --program mine.py:held_out

A run directory holds weights and settings, not code, so neither its model nor its tasks can be built from it.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from warpgrad.cli.run import print_metrics
from warpgrad.errors import WarpgradError, require
from warpgrad.io import read_object, write_json

if TYPE_CHECKING:
    from warpgrad.model.learner import Learner
    from warpgrad.tasks import Task


def evaluate_own_command(
    *, run: Annotated[Positional[Path], arg(metavar="RUN")], program: str | None = None, steps: int | None = None
) -> None:
    """Test a run of your own program on tasks that the program returns, and save the result with the run.

    Example: warpgrad evaluate runs/mine --program mine.py:held_out --steps 20

    Args:
        run: The run directory that `meta_train(run=...)` wrote.
        program: FILE.py:FUNCTION. The function takes no arguments and returns the learner, built as for training, and
            the tasks to test on. The file is executed, as by Python.
        steps: K, the number of adaptation steps on each task. Without it, that of meta-training.
    """
    config = read_object(run / "config.json")
    if program is None:
        raise WarpgradError(
            f"{run} was made by your own program, which alone knows its model and tasks: give a function that returns "
            "(learner, tasks) with --program FILE.py:FUNCTION, or call wg.load_run and wg.score yourself."
        )
    steps = config.get("algorithm.steps") if steps is None else steps
    if steps is None:
        raise WarpgradError(f"{run} does not record how many steps its algorithm takes; give --steps K.")
    from warpgrad.adaptation.adapt import mean_scores, score
    from warpgrad.training.run_directory import OWNER, check_place, checkpointed_steps, identity, reserved
    from warpgrad.training.saving import load_run

    with reserved(run):
        learner, tasks = _held_out(program)
        method = load_run(run, learner)
        began, worked = time.monotonic(), time.process_time()
        tasks = list(tasks)
        each = score(method.learner, tasks, rule=method.rule, steps=steps, per_task=True)
        metrics = {f"test/{name}": value for name, value in mean_scores(each).items()}
        result = {
            "metrics": metrics,
            "per_task": each,
            "tasks": [task.name for task in tasks],
            "steps": steps,
            "program": program,
            "after_meta_steps": checkpointed_steps(run),
            OWNER: identity(config),
            "seconds": time.monotonic() - began,
            "processor_seconds": time.process_time() - worked,
        }
        # Read before anything is written, so that a damaged summary leaves no evaluation that it does not include.
        summary = read_object(run / "summary.json")
        require(
            isinstance(summary.get("metrics"), dict),
            f"{run / 'summary.json'} has no named metrics; restore it, or call meta_train again.",
        )
        check_place(run)
        write_json(run / "evaluation.json", result, seal=True)
        write_json(run / "summary.json", {**summary, "metrics": {**summary["metrics"], **metrics}}, seal=True)
    print_metrics(metrics)


def _held_out(program: str) -> tuple[Learner, Iterable[Task]]:
    """Call the function that the user names and return its learner and tasks."""
    file, _, name = program.rpartition(":")
    require(
        file and name.isidentifier() and Path(file).is_file(),
        f"--program {program} does not name a function in a file; give FILE.py:FUNCTION.",
    )
    # As with `python FILE`, modules beside it can be imported.
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        function: Callable[[], Any] | None = runpy.run_path(file, run_name="held_out").get(name)
        require(callable(function), f"{file} has no function {name}.")
        assert function is not None
        found = function()
    except WarpgradError:
        raise
    # Whatever the user's code raises is an error of that code and not of this library.
    except Exception as error:
        raise WarpgradError(f"{program} failed: {type(error).__name__}: {error}.") from error
    require(
        isinstance(found, tuple) and len(found) == 2,
        f"{program} must return (learner, tasks), not {type(found).__name__}.",
    )
    return found  # type: ignore[no-any-return]

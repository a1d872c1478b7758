"""Loggers: callbacks that write every number of every record to TensorBoard, Weights & Biases or MLflow.

    wg.meta_train(..., callbacks=[WandbLogger(project="mine")])

Each needs the extra of its name: pip install 'warpgrad[wandb]'. None uses the network unless it is told to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.lazy import naming_extras
from warpgrad.model.learner import Learner
from warpgrad.training.callbacks import Callback, MetaRecord, Training
from warpgrad.training.run_directory import TIMES

_FOREIGN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow does not allow in the name of a metric."""
_LONGEST = 500
"""The longest value of a setting that all versions of MLflow accept."""


def numbers(record: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a record that are logged: all except the number of the meta-step and the times."""
    return {name: value for name, value in record.items() if name not in ("step", *TIMES)}


class TensorBoardLogger(Callback):
    """Every number of every record as a TensorBoard scalar, below `directory`.

    Example:
        >>> logger = training.TensorBoardLogger(folder / "events")
        >>> records = wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                         meta_steps=1, callbacks=[logger])
        >>> len(list((folder / "events").iterdir()))
        1
    """

    def __init__(self, directory: str | Path) -> None:
        with naming_extras():
            from torch.utils.tensorboard import SummaryWriter
        self._make = SummaryWriter
        self._directory = Path(directory)
        self._writer: SummaryWriter | None = None

    def on_start(self, training: Training) -> None:
        # Purge the events of meta-steps that a killed process took after its last checkpoint.
        self._writer = self._make(str(self._directory), purge_step=training.step + 1)

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        del learner
        assert self._writer is not None, "on_start comes first"
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_end(self, training: Training) -> None:
        del training
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbLogger(Callback):
    """Settings and every number of every record as a run of Weights & Biases.

    Warning: nothing leaves the machine in the mode `offline`, which is the default; `wandb sync` sends it later, and
    `mode="online"` does so at once.

    Example:
        >>> training.WandbLogger("mine", mode="somewhere")
        Traceback (most recent call last):
        warpgrad.errors.WarpgradError: mode='somewhere' is unknown; choose offline, online or disabled.
    """

    def __init__(
        self, project: str, *, name: str | None = None, directory: str | Path | None = None, mode: str = "offline"
    ) -> None:
        """
        Args:
            name: Of the run; the run directory's where it is None.
            directory: Where wandb keeps its files; the run directory, or wandb's own choice, where it is None.
        """
        if mode not in ("offline", "online", "disabled"):
            raise WarpgradError(f"mode={mode!r} is unknown; choose offline, online or disabled.")
        with naming_extras():
            import wandb
        self._wandb: Any = wandb
        self._options = {"project": project, "mode": mode}
        self._name, self._directory = name, directory
        self._run: Any = None

    def on_start(self, training: Training) -> None:
        run = training.run
        self._run = self._wandb.init(
            **self._options,
            name=self._name or (run.name if run is not None else None),
            dir=str(self._directory or run) if self._directory or run else None,
            config=dict(training.settings),
            reinit="create_new",
        )

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        del learner
        self._run.log(numbers(record), step=step)

    def on_end(self, training: Training) -> None:
        if self._run is not None:
            self._run.summary["stopped"] = training.stopped
            self._run.finish(exit_code=0)
            self._run = None


class MLflowLogger(Callback):
    """Settings and every number of every record as a run of MLflow, in a local store of files.

    Characters that MLflow does not allow in the names of metrics become underscores.

    Example:
        >>> training.MLflowLogger("")
        Traceback (most recent call last):
        warpgrad.errors.WarpgradError: MLflowLogger(...) needs the name of an experiment.
    """

    def __init__(self, experiment: str, *, name: str | None = None, directory: str | Path = "mlruns") -> None:
        """
        Args:
            name: Of the run; the run directory's where it is None.
            directory: The store.
        """
        if not experiment:
            raise WarpgradError("MLflowLogger(...) needs the name of an experiment.")
        with naming_extras():
            from mlflow.tracking import MlflowClient
        self._client_type: Any = MlflowClient
        self._experiment, self._name = experiment, name
        self._directory = Path(directory)
        self._client: Any = None
        self._run = ""

    def on_start(self, training: Training) -> None:
        with _files_allowed():
            self._client = self._client_type(tracking_uri=self._directory.absolute().as_uri())
            found = self._client.get_experiment_by_name(self._experiment)
            number = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
            run = training.run
            name = self._name or (run.name if run is not None else None)
            self._run = self._client.create_run(number, run_name=name).info.run_id
            for setting, value in training.settings.items():
                self._client.log_param(self._run, setting, str(value)[:_LONGEST])

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        del learner
        for name, value in numbers(record).items():
            self._client.log_metric(self._run, _FOREIGN.sub("_", name), value, step=step)

    def on_end(self, training: Training) -> None:
        if self._client is not None:
            self._client.set_tag(self._run, "stopped", training.stopped or "no")
            self._client.set_terminated(self._run)
            self._client = None


@contextmanager
def _files_allowed() -> Iterator[None]:
    """Allow a store of plain files inside the block, which newer versions of MLflow refuse unless this is set."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

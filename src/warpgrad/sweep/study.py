"""A sweep's trials as an Optuna study, in a separate SQLite file or in any database that several machines can reach.

Sampler, pruner and storage are Optuna's. Two things are added. First, what a trial tries depends only on the seed, its
number and the setting: Optuna's samplers draw from one stream, so every draw here gets a new sampler seeded by these.
Second, a trial that was left running is resumed under its number, in its run directory, whereas Optuna would start
another. A trial carries the mark of the folder that it runs in, and the process that runs it holds a lock in that
folder, which the system frees when the process dies; so a process may take a trial that has the mark of its folder
and whose lock is free.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
import sqlalchemy
from filelock import FileLock
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from warpgrad.errors import WarpgradError, require
from warpgrad.experiments import runner
from warpgrad.experiments.search_space import Choices, FloatRange, Space
from warpgrad.io import BusyError, DamagedError, Lock, locked, read_object, write_bytes, writing
from warpgrad.keys import fold
from warpgrad.sweep.results import Sweep, SweepPaths, restored, stored, trial_name
from warpgrad.sweep.space import space_to_json

DEFINITION = "warpgrad"
"""The study's attribute that stores the definition of its sweep."""


class SweepStudy:
    """The trials of one sweep, as this process reads and writes them."""

    def __init__(self, sweep: Sweep, places: SweepPaths, storage: RDBStorage) -> None:
        self.sweep, self.places, self._storage = sweep, places, storage
        self._held: dict[int, Lock] = {}
        optuna.create_study(
            study_name=places.study,
            storage=storage,
            direction="minimize" if sweep.direction == "minimise" else "maximize",
            load_if_exists=True,
        )
        self._check(self._loaded())
        with writing(places.directory):
            places.directory.mkdir(parents=True, exist_ok=True)
        # Held while a trial is started, resumed or ended: these are several steps, which must not be interleaved.
        self._turn = FileLock(places.directory / ".sweep.lock")
        mark = places.directory / ".folder"
        with self._turn:
            if not mark.exists():
                write_bytes(mark, uuid.uuid4().hex.encode())
        self._folder = mark.read_text()

    def next_trial(self, total: int, *, take_over: bool = False) -> Trial | None:
        """Return a trial to run: one that was left running, or a new one below `total` trials, or else None."""
        with self._turn:
            study = self._loaded()
            before = study.get_trials(deepcopy=False)
            for trial in before:
                ours = take_over or trial.user_attrs.get("folder") == self._folder
                if trial.state == TrialState.RUNNING and ours and self._claimed(trial.number):
                    found = self._opened(study, trial.number)
                    found.set_user_attr("folder", self._folder)
                    return found
            if len(before) >= total:
                return None
            # Created with its mark, so that its owner is known at any moment.
            study.add_trial(optuna.create_trial(state=TrialState.RUNNING, user_attrs={"folder": self._folder}))
            known = {trial.number for trial in before}
            (number,) = (
                trial.number
                for trial in study.get_trials(deepcopy=False)
                if trial.number not in known and trial.user_attrs.get("folder") == self._folder
            )
            self._claimed(number)
            return self._opened(study, number)

    def chosen(self, trial: Trial) -> dict[str, Any]:
        """Return the settings that the trial tries, in the order of the space; they are drawn on the first call."""
        found = {}
        for name, space in self.sweep.space.items():
            trial.study.sampler = sampler(self.sweep, trial.number, name)
            found[name] = _suggested(trial, name, space)
        return found

    def end(self, trial: Trial, state: TrialState, value: float | None = None, **notes: Any) -> None:
        """Record the end of a trial, with `notes` about it."""
        with self._turn:
            for name, note in notes.items():
                trial.set_user_attr(name, note)
            trial.study.tell(trial, value, state=state)
            self._held.pop(trial.number).release()
            self._lock_file(trial.number).unlink(missing_ok=True)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials by number, compared with their runs if those are here: a database has no checksums."""
        found = self._loaded().get_trials(deepcopy=False)
        for trial in found:
            if trial.state == TrialState.COMPLETE and (self.places.trial(trial.number) / "summary.json").exists():
                self._compare(trial)
        return found

    def _compare(self, trial: FrozenTrial) -> None:
        directory = self.places.trial(trial.number)
        summary, config = (read_object(directory / name) for name in ("summary.json", "config.json"))
        kept = {self.sweep.metric: trial.value, **json.loads(json.dumps(self.sweep.chosen(trial)))}
        metrics = summary.get("metrics")
        ran = {**config, self.sweep.metric: metrics.get(self.sweep.metric) if isinstance(metrics, dict) else None}
        for name, value in kept.items():
            if value != ran.get(name):
                raise DamagedError(
                    f"the study '{self.places.study}' has {name} = {value!r} for {trial_name(trial.number)}, but its "
                    f"run in {directory} has {ran.get(name)!r}; restore the one that is damaged, or choose another "
                    "--study."
                )

    def release(self) -> None:
        """Release the trials that are still running, so that another process can resume them."""
        for lock in self._held.values():
            lock.release()

    def _loaded(self) -> optuna.Study:
        """Load the study as a new object, because it caches trials and other processes may have added some."""
        prune = self.sweep.prune
        pruner = NopPruner() if prune is None else MedianPruner(n_startup_trials=prune.after)
        first = sampler(self.sweep, 0, "")
        return optuna.load_study(study_name=self.places.study, storage=self._storage, sampler=first, pruner=pruner)

    def _opened(self, study: optuna.Study, number: int) -> Trial:
        study_id = self._storage.get_study_id_from_name(self.places.study)
        return Trial(study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _claimed(self, number: int) -> bool:
        """Try to lock a trial, and return whether this process has just got the lock."""
        try:
            if number not in self._held:
                self._held[number] = locked(self._lock_file(number), "")
                return True
        except BusyError:
            pass
        return False

    def _lock_file(self, number: int) -> Any:
        return self.places.directory / f".{trial_name(number)}.lock"

    def _check(self, study: optuna.Study) -> None:
        """Check that a study is resumed with the definition of the sweep that it was started with."""
        sweep, name = self.sweep, self.places.study
        settings = runner.stored_settings(sweep.experiment, sweep.config)
        definition = {
            **{name: value for name, value in settings.items() if name not in sweep.space},
            "space": space_to_json(sweep.space), "sampler": sweep.search,
            "metric": sweep.metric, "direction": sweep.direction,
        }  # fmt: skip
        definition = json.loads(json.dumps(definition))
        kept = study.user_attrs.get(DEFINITION)
        if kept is None:
            require(
                not study.get_trials(deepcopy=False),
                f"the study '{name}' was not made by 'warpgrad sweep'; choose another --study.",
            )
            study.set_user_attr(DEFINITION, definition)
            return
        for key in sorted(set(kept) | set(definition)):
            require(
                kept.get(key) == definition.get(key),
                f"study '{name}' has {key} = {kept.get(key)!r}, not {definition.get(key)!r}; choose another --study.",
            )


def sampler(sweep: Sweep, number: int, name: str) -> BaseSampler:
    """Return Optuna's sampler for one setting of one trial."""
    seed = fold(sweep.config.seed, "sweep", number, name) % 2**32  # what Optuna accepts
    return TPESampler(seed=seed) if sweep.search == "tpe" else RandomSampler(seed=seed)


def _suggested(trial: Trial, name: str, space: Space) -> Any:
    if isinstance(space, Choices):
        return restored(space, trial.suggest_categorical(name, [stored(value) for value in space.choices]))
    if isinstance(space, FloatRange):
        return trial.suggest_float(name, space.low, space.high, log=space.log)
    return trial.suggest_int(name, space.low, space.high, log=space.log)


@contextmanager
def open_study(sweep: Sweep, places: SweepPaths, storage: str | None = None) -> Iterator[SweepStudy]:
    """Open the study of a sweep, in the database at the URL `storage` or in a separate file; close it afterwards."""
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    address = storage
    if address is None:
        with writing(places.database):
            places.root.mkdir(parents=True, exist_ok=True)
        address = sqlalchemy.URL.create("sqlite", database=str(places.database)).render_as_string()
    # Several processes may write to one file; each waits for its turn.
    patience = {"connect_args": {"timeout": 60}} if address.startswith("sqlite") else {}
    try:
        database = RDBStorage(address, engine_kwargs=patience)
    except (
        sqlalchemy.exc.SQLAlchemyError,
        optuna.exceptions.OptunaError,
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:
        # The address is not repeated: it may hold a password.
        reason = str(error).splitlines()[0].replace(address, "the address").rstrip(".")
        raise WarpgradError(f"the study's storage cannot be opened: {reason}; fix --storage.") from error
    study = None
    try:
        study = SweepStudy(sweep, places, database)
        yield study
    except optuna.exceptions.StorageInternalError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise WarpgradError(f"the study's storage failed ({reason}); fix that and repeat the command.") from error
    finally:
        if study is not None:
            study.release()
        database.remove_session()
        database.engine.dispose()

"""A sweep's record: an Optuna study, in a SQLite file of its own or in any database that several machines reach.

A trial is created with its owner in one transaction, so at no moment is there a running trial that nobody can judge
to be alive or left behind. Trials that were left are taken up again, in their own run directory, under their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from warpgrad.errors import WarpgradError
from warpgrad.experiments import runner
from warpgrad.experiments.search_space import Choices, FloatRange, Space
from warpgrad.io import try_lock, writing
from warpgrad.sweep.ownership import Owner
from warpgrad.sweep.results import Outcome, State, Sweep
from warpgrad.sweep.samplers import Keyed
from warpgrad.sweep.space import described

DEFINITION = "warpgrad"
"""The study's attribute that says which sweep it is of."""
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


class Record:
    """The trials of one sweep, as this process reads and writes them."""

    def __init__(self, sweep: Sweep, name: str, storage: RDBStorage, owner: Owner, prune_after: int) -> None:
        self.sweep, self.owner = sweep, owner
        self._name, self._storage = name, storage
        self._sampler = Keyed(sweep.search, sweep.config.seed)
        self._pruner = optuna.pruners.MedianPruner(n_startup_trials=prune_after)
        study = optuna.create_study(
            study_name=name,
            storage=storage,
            direction="minimize" if sweep.direction == "minimise" else "maximize",
            load_if_exists=True,
        )
        self._check(study)

    def next_trial(self, total: int, *, take_over: bool = False) -> Trial | None:
        """A trial to run: one that was left, else a new one while there are fewer than `total`; else None."""
        # Trials are cached by the study object; other processes may have added some.
        study = self._study()
        trials = study.get_trials(deepcopy=False)
        for trial in trials:
            if trial.state == TrialState.RUNNING and self._claimed(trial, take_over):
                return self._opened(study, trial.number)
        if len(trials) >= total:
            return None
        known = {trial.number for trial in trials}
        study.add_trial(optuna.create_trial(state=TrialState.RUNNING, user_attrs={"owner": self.owner.name}))
        (number,) = (
            trial.number
            for trial in study.get_trials(deepcopy=False)
            if trial.number not in known and trial.user_attrs.get("owner") == self.owner.name
        )
        return self._opened(study, number)

    def chosen(self, trial: Trial) -> dict[str, Any]:
        """What the trial tries, in the order of the space; drawn now unless it was before."""
        return {name: _suggest(trial, name, space) for name, space in self.sweep.space.items()}

    def complete(self, trial: Trial, value: float, seconds: float) -> None:
        trial.set_user_attr("seconds", seconds)
        trial.study.tell(trial, value)

    def prune(self, trial: Trial) -> None:
        trial.study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: Trial, words: str) -> None:
        trial.set_user_attr("error", words)
        trial.study.tell(trial, state=TrialState.FAIL)

    def owners(self) -> set[str]:
        """Whom the running trials belong to."""
        running = self._study().get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return {str(trial.user_attrs.get("owner")) for trial in running}

    def outcomes(self) -> list[Outcome]:
        """All trials by number. Optuna values a pruned trial by its last report; here it has no value."""
        return [
            Outcome(
                trial.number,
                _STATES[trial.state],
                {name: _chosen(self.sweep.space[name], value) for name, value in trial.params.items()},
                trial.value if trial.state == TrialState.COMPLETE else None,
                trial.user_attrs.get("seconds"),
                trial.user_attrs.get("error"),
            )
            for trial in self._study().get_trials(deepcopy=False)
            if trial.state in _STATES
        ]

    def _study(self) -> optuna.Study:
        return optuna.load_study(
            study_name=self._name, storage=self._storage, sampler=self._sampler, pruner=self._pruner
        )

    def _opened(self, study: optuna.Study, number: int) -> Trial:
        study_id = self._storage.get_study_id_from_name(self._name)
        return Trial(study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _claimed(self, trial: FrozenTrial, take_over: bool) -> bool:
        """Make a trial ours if its owner is gone. The lock on the owner's file keeps others from doing the same."""
        name = str(trial.user_attrs.get("owner"))
        file = self.owner.file(name)
        if name == self.owner.name or not (file.exists() or take_over):
            return False
        with_lock = try_lock(file) if file.exists() else None
        if file.exists() and with_lock is None:
            return False
        try:
            handle = self._opened(self._study(), trial.number)
            if handle.user_attrs.get("owner") != name:
                return False
            handle.set_user_attr("owner", self.owner.name)
            return True
        finally:
            if with_lock is not None:
                with_lock.release()

    def _check(self, study: optuna.Study) -> None:
        """A study goes on only as the sweep it began as."""
        sweep = self.sweep
        settings = runner.settings(sweep.experiment, sweep.config)
        definition = {
            **{name: value for name, value in settings.items() if name not in sweep.space},
            "space": described(sweep.space), "sampler": sweep.search,
            "metric": sweep.metric, "direction": sweep.direction,
        }  # fmt: skip
        definition = json.loads(json.dumps(definition))
        kept = study.user_attrs.get(DEFINITION)
        if kept is None:
            if study.get_trials(deepcopy=False):
                raise WarpgradError(f"the study '{self._name}' was not made by 'warpgrad sweep'; name another --study.")
            study.set_user_attr(DEFINITION, definition)
            return
        for name in sorted(set(kept) | set(definition)):
            if kept.get(name) != definition.get(name):
                raise WarpgradError(
                    f"the study '{self._name}' has {name} = {kept.get(name)!r}, not {definition.get(name)!r}; "
                    "name another --study."
                )


def _suggest(trial: Trial, name: str, space: Space) -> Any:
    if isinstance(space, Choices):
        return _chosen(space, trial.suggest_categorical(name, [_stored(value) for value in space.choices]))
    if isinstance(space, FloatRange):
        return trial.suggest_float(name, space.low, space.high, log=space.log)
    return trial.suggest_int(name, space.low, space.high, log=space.log)


def _stored(value: Any) -> Any:
    """A choice as Optuna keeps it, which knows no lists: as text."""
    return json.dumps(value) if isinstance(value, tuple) else value


def _chosen(space: Space, stored: Any) -> Any:
    """The choice that is kept so."""
    lists = [value for value in space.choices if isinstance(value, tuple)] if isinstance(space, Choices) else []
    return next((value for value in lists if _stored(value) == stored), stored)


@contextmanager
def opened(url: str | Path) -> Iterator[RDBStorage]:
    """The database at an address, or in a file; closed afterwards."""
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if isinstance(url, Path):
        with writing(url):
            url.parent.mkdir(parents=True, exist_ok=True)
        address = sqlalchemy.URL.create("sqlite", database=str(url)).render_as_string()
    else:
        address = url
    # Several processes may write to one file; each waits for its turn.
    patience = {"connect_args": {"timeout": 60}} if address.startswith("sqlite") else {}
    try:
        storage = RDBStorage(address, engine_kwargs=patience)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, RuntimeError, ValueError) as error:
        # The address is not repeated: it may hold a password.
        reason = str(error).splitlines()[0].replace(address, "the address").rstrip(".")
        raise WarpgradError(f"the study's storage cannot be opened: {reason}; mend --storage.") from error
    try:
        yield storage
    except optuna.exceptions.StorageInternalError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise WarpgradError(f"the study's storage failed ({reason}); mend that and repeat the command.") from error
    finally:
        storage.remove_session()
        storage.engine.dispose()

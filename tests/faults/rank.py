"""The command line as a rank of a soak carries it out: `python -m tests.faults.rank run synthetic ...` in torchrun."""

from __future__ import annotations

from functools import partial

from warpgrad.experiments import runner


def save_every_step() -> None:
    """Save after every meta-step and name no commit.

    A run's files then depend neither on the time, by which checkpoints are saved otherwise, nor on the source, which
    may change while faults are tried for minutes.
    """
    runner.meta_train = partial(runner.meta_train, checkpoint_seconds=0.0)  # type: ignore[attr-defined]
    runner.commit = lambda: None


if __name__ == "__main__":
    from warpgrad.__main__ import main  # handles signals from here on, as `warpgrad` does from its first line

    save_every_step()
    main()

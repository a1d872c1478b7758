"""What the page and the terminal show of the alphabets experiment: the results at every test batch, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.errors import WarpgradError
from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group


def batches_of(groups: Sequence[Group]) -> list[int]:
    """The batch sizes at which all runs were tested."""
    tested = [evaluation["test_batch"] for group in groups for evaluation in group.evaluations]
    common = [batch for batch in tested[0] if all(batch in others for others in tested)]
    if not common:
        raise WarpgradError(
            "these runs were tested at different batch sizes, so there is nothing to compare: test them at the same "
            "ones with 'warpgrad evaluate RUN --test-batch …'."
        )
    return common


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    titles = {f"accuracy_{batch}": f"accuracy % at batch {batch} [95 % interval]" for batch in batches_of(groups)}
    return comparison.result_lines(groups, titles=titles)

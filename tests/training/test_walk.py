"""The walk through one meta-step stands in src/warpgrad/README.md, is what happens, and cannot grow unnoticed.

A file is entered when one of its functions is called, as `sys.setprofile` tells; importing it does not count. A
meta-step lasts from one call of the family's `meta_batch` to the next, so it includes what the loop does between two of
them: the record, the snapshot, callbacks and the progress bar. The second meta-step is walked: what happens once, such
as comparing a stack of tasks with the loop, is over by then.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import warpgrad as wg
from tests.support import ROOT
from tests.support.omniglot_runs import EXPERIMENT, store, tiny
from warpgrad.experiments.base import Execution

__all__ = ["store", "tiny"]  # fixtures

PACKAGE = Path(wg.__file__).parent
BEFORE = {"README.md": 27, "run omniglot": 37}
"""Files at e927a17, before the tree was put in order, counted in the same way."""
ONCE = ("Learner", "SGD", "Leap", "Method", "Algorithm", "Backend", "MetaOptimiser", "TrainingState", "MetaLoop")
"""Parts of a training. None is built twice."""


class Walk:
    """Inside the block: the files that the second meta-step enters, and how often each part is built in all."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.built: Counter[str] = Counter()
        self._step = 0

    def __enter__(self) -> Walk:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _called(self, frame, event, argument) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(PACKAGE):
            return
        if frame.f_code.co_name == "meta_batch" and "size" in frame.f_locals:
            self._step += 1
        if frame.f_code.co_name in ("__init__", "__post_init__"):
            self.built[frame.f_code.co_qualname.split(".")[0]] += 1
        name = path.relative_to(PACKAGE).as_posix()
        if self._step == 2 and name not in self.files:
            self.files.append(name)


def documented(column: int) -> set[str]:
    """The files that the table of the walk marks in this column."""
    _, _, section = (PACKAGE / "README.md").read_text().partition("## One meta-step, file by file\n")
    rows = re.findall(r"^\| `([a-z_/]+\.py)` \|[^|]*\|([^|]*)\|([^|]*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    return {row[0] for row in rows if row[column].strip()}


def test_the_example_of_the_readme_walks_the_files_that_the_map_lists():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    short = re.sub(r"^(print|fitted|new_tasks).*\n?", "", code.replace("meta_steps=300", "meta_steps=3"), flags=re.M)
    assert short != code
    with Walk() as walk:
        exec(compile(short, "README.md", "exec"), {})
    assert set(walk.files) == documented(1)
    assert len(walk.files) < BEFORE["README.md"]
    assert {name: walk.built[name] for name in ONCE} == dict.fromkeys(ONCE, 1)


def test_run_omniglot_walks_the_files_that_the_map_lists(tiny, tmp_path):
    with Walk() as walk:
        EXPERIMENT.train(tiny(method="warp-leap", meta_steps=3, validate_every=0), Execution(tmp_path / "run"))
    assert set(walk.files) == documented(2)
    assert len(walk.files) < BEFORE["run omniglot"]
    assert {name: walk.built[name] for name in ONCE} == dict.fromkeys(ONCE, 1)

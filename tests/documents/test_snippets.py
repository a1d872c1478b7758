"""Every Python snippet of every document is run as it stands, those of a page one after the other.

What a page needs and does not show stands in a comment, `<!-- run … -->`: data that a reader has of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

SNIPPET = re.compile(r"^```python\n(.*?)^```$|^<!-- run\n(.*?)^-->$", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    page
    for page in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("src/*/*.md"),
    )
    if page.name != "CHANGELOG.md"
)
OWN_TEST = {"README.md"}
"""Its twenty lines meta-train for a while: `tests/documents/test_readme.py`, marked slow."""
OPTIONAL = ("gymnasium", "higher", "onnx", "optuna", "peft", "torchopt", "transformers")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def snippets(text: str) -> list[str]:
    return [shown or hidden for shown, hidden in SNIPPET.findall(text)]


SHOWN = [page for page in PAGES if name_of(page) not in OWN_TEST and snippets(page.read_text(encoding="utf-8"))]


@pytest.mark.filterwarnings(
    "ignore:CUDA is not available",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning:torch.onnx",
    "ignore::UserWarning:torchopt",
    "ignore::UserWarning:higher",
)
@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": page.stem}
    for snippet in snippets(page.read_text(encoding="utf-8")):
        for package in OPTIONAL:
            if re.search(rf"^(import|from) {package}\b", snippet, re.MULTILINE):
                pytest.importorskip(package, reason="its extra is not installed")
        exec(compile(snippet, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_stands_in_fences_where_it_is_run(page):
    """An indented block is for commands: Python in one would never be run."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    python = re.findall(r"^ {4,}(?:from \S+ import |import \w|\w+ = wg\.|wg\.\w+\()", text, flags=re.MULTILINE)
    assert not python, f"{name_of(page)}: {python}"


def test_a_snippet_that_fails_is_found():
    text = "```python\nx = 1\n```\n\n<!-- run\nx += 1\n-->\n\n```python\nassert x == 3\n```\n"
    names: dict = {}
    *good, wrong = snippets(text)
    for snippet in good:
        exec(snippet, names)
    assert names["x"] == 2
    with pytest.raises(AssertionError):
        exec(wrong, names)

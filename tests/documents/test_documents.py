"""What the documents say of results is what the records hold: rebuilt and compared, number by number."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests.support import ROOT

OWN_PAGE = {"cost.md", "claims.md"}
"""Written whole from the records, by the benchmark itself and by docs/claims.py."""
NO_RESULTS = "<!-- no results -->"
EXEMPT = {"", "experiment", "what", "paper", "published"}
"""Columns of a mixed table that hold words, settings and the paper's figures."""


def load_tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load_tables()


def loose_tables(text: str) -> list[list[str]]:
    """The tables that are neither built from a record nor said to hold no results."""
    text = tables.TABLE.sub("", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found: list[list[str]] = []
    previous = ""
    for line in text.splitlines():
        if not line.startswith("|"):
            previous = line or previous
            inside = False
            continue
        if not (found and inside):
            found.append([previous])
        found[-1].append(line)
        inside = True
    return [lines[1:] for lines in found if lines[0] != NO_RESULTS]


def unexplained(text: str) -> list[str]:
    """Numbers in such tables that no record yields."""
    missing = []
    for lines in loose_tables(text):
        rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]
        for row in rows[2:]:
            for title, cell in zip(rows[0], row, strict=False):
                if title.lower() not in EXEMPT and re.search(r"\d", tables.NUMBER.sub("", cell)):
                    missing.append(cell)
    return missing


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=lambda path: path.name)
def test_tables_and_numbers_are_those_of_the_records(path):
    assert path.read_text() == tables.renewed(path.read_text()), "python docs/tables.py writes them anew"


@pytest.mark.parametrize("path", [path for path in tables.DOCUMENTS if path.name not in OWN_PAGE], ids=lambda p: p.name)
def test_no_table_holds_a_result_that_no_record_yields(path):
    assert unexplained(path.read_text()) == []


def test_the_readme_gives_no_result_outside_its_markers():
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    text = re.sub(r"^    .*$|https?://[^\s)]+", "", text, flags=re.MULTILINE)
    prose = [line for line in tables.NUMBER.sub("", text).splitlines() if not line.startswith("|")]
    assert re.findall(r"\d+\.\d+(?! is)", " ".join(prose).replace("Apache-2.0", "")) == []


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=lambda path: path.name)
def test_no_line_begins_with_a_number_of_a_record(path):
    """Markdown ends a paragraph before a line that begins with a comment."""
    assert not [line for line in path.read_text().splitlines() if line.lstrip().startswith("<!--=")]


def test_a_number_that_no_record_yields_is_found():
    """The tests above can fail: on a changed number, and on a table that somebody typed."""
    name = next(path.name for path in sorted((ROOT / "results" / "before").glob("omniglot.json")))
    spec = json.dumps({"record": f"before/{name}", "metrics": {"accuracy": "accuracy"}})
    whole = f"<!-- table {spec} -->\n{tables.built(json.loads(spec))}<!-- end -->\n"
    assert tables.renewed(whole) == whole
    assert unexplained(whole) == []
    digit = re.search(r"\d\.\d", whole)[0]
    assert tables.renewed(whole.replace(digit, "9.9", 1)) == whole
    typed = "| method | accuracy | paper |\n|---|---|---|\n| ours | 99.9 | 83.8 |\n"
    assert unexplained(typed) == ["99.9"]
    assert unexplained(f"<!-- no results -->\n{typed}") == []


def test_what_rests_on_records_of_before_says_so():
    """A page with a table from results/before/ says in one line what was wrong with it."""
    for path in tables.DOCUMENTS:
        text = path.read_text()
        if '"before/' in text or "<!--= before/" in text:
            assert "**Made before" in text, path.name

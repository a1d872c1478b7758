"""The index of the cookbook; its snippets are run with those of every other page, in test_snippets.py."""

from __future__ import annotations

import re

from tests.support import ROOT

PAGES = sorted((ROOT / "docs" / "cookbook").glob("*.md"))


def test_the_index_names_every_page_and_no_other():
    index = (ROOT / "docs" / "cookbook" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([a-z-]+\.md)\)", index))
    assert named == {page.name for page in PAGES if page.name != "README.md"}


def test_every_file_that_a_page_names_exists():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} names {target}"

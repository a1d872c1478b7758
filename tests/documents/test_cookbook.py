"""Every snippet of the cookbook is run as it stands."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

PAGES = sorted((ROOT / "docs" / "cookbook").glob("*.md"))
RECIPES = [page for page in PAGES if page.name != "README.md"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch.onnx")
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert snippets, f"{page.name} shows nothing"
    names: dict = {"__name__": page.stem}
    for snippet in snippets:
        for package in ("transformers", "onnx", "peft"):
            if re.search(rf"^(import|from) {package}\b", snippet, re.MULTILINE):
                pytest.importorskip(package, reason="make integrations")
        exec(compile(snippet, page.name, "exec"), names)


def test_the_index_names_every_page_and_no_other():
    index = (ROOT / "docs" / "cookbook" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([a-z-]+\.md)\)", index)) == {page.name for page in RECIPES}


def test_every_file_that_a_page_names_exists():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} names {target}"

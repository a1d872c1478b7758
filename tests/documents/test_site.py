"""The documentation site: what it shows is whole, and a reader's browser asks nobody else for anything.

`make docs` builds it, with warnings as errors, and hands its folder to these tests.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import threading
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.surface import CORE, public_names

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
EXTERNAL = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=[\"']?(?:https?:)?//"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|dns-prefetch|icon|modulepreload))[^>]*href=[\"']?(?:https?:)?//"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//"
)
"""What a browser fetches by itself from elsewhere; a link that a reader may follow is none of it."""


@pytest.fixture(scope="module")
def site(pytestconfig) -> Path:
    folder = pytestconfig.getoption("site")
    if folder is None:
        pytest.skip("make docs builds the site and hands it over with --site")
    return ROOT / folder


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    pytest.importorskip("nbclient", reason="the extra `docs` is not installed")
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("hooks")
    finally:
        sys.path.remove(str(ROOT / "docs"))


def external(text: str) -> list[str]:
    return [match[0] for match in EXTERNAL.finditer(text)]


def test_nothing_is_fetched_from_elsewhere(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 40
    found = {path.relative_to(site).as_posix(): external(path.read_text(encoding="utf-8")) for path in files}
    assert not {name: hits for name, hits in found.items() if hits}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="//fonts.example" rel="preconnect">',
        "<img alt='' src='http://example/x.png'>",
        "@import url(https://example/x.css)",
        "body { background: url('https://example/x.png') }",
    ],
)
def test_what_would_be_fetched_is_found(text):
    assert external(text)


def test_a_link_to_follow_is_not_fetched():
    assert not external(
        '<a href="https://arxiv.org/abs/1909.00025">the paper</a><link rel="canonical" href="https://x">'
    )


def test_the_reference_has_every_public_name(site):
    """By the inventory, which lists what pages describe: under a public path or where the name is defined."""
    data = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    described = {line.split()[0] for line in lines}
    missing = []
    for package, name, value in public_names():
        if name in CORE:  # a package, which has a page
            continue
        home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if not {f"{package}.{name}", f"warpgrad.{name}", home} & described:
            missing.append(f"{package}.{name}")
    assert not missing


def test_the_reference_is_of_the_public_packages(hooks):
    assert hooks.PACKAGES == CORE


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_kept_without_outputs_and_shown_with_them(site, path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    page = (site / "tutorials" / f"{path.stem}.html").read_text(encoding="utf-8")
    assert "prints" in page
    assert f'href="{path.stem}.ipynb"' in page
    assert (site / "tutorials" / path.name).exists()


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>[0.94, 1.10]</p>", None),
        ("<td>1.04 [0.94, 1.10]</td>", '<td>1.04 <span class="whole">[0.94, 1.10]</span></td>'),
        ("<td>−5.9 [−9.8 to −2.1]</td>", '<td>−5.9 <span class="whole">[−9.8 to −2.1]</span></td>'),
        ("<td>order [1, 3, 4]</td>", None),
        ("<code>run --seed</code>", '<code><span class="whole">run</span> <span class="whole">--seed</span></code>'),
        ("<code>&lt;a-class-of-two&gt;</code>", '<code><span class="whole">&lt;a-class-of-two&gt;</span></code>'),
        ("<code>warpgrad.analysis.is_positive</code>", "<code>warpgrad.<wbr>analysis.<wbr>is_<wbr>positive</code>"),
        ("<code>DistributedDataParallel</code>", "<code>Distributed<wbr>Data<wbr>Parallel</code>"),
        ("<p>60 000 or 95 % (App. D, Eq. 11)</p>", "<p>60\xa0000 or 95\xa0% (App.\xa0D, Eq.\xa011)</p>"),
        ("<pre><span></span><code>run --seed</code></pre>", None),
        ('<span class="doc doc-object-name">wg.net</span>', '<span class="doc doc-object-name">wg.<wbr>net</span>'),
    ],
)  # fmt: skip
def test_what_belongs_together_stays_on_one_line(hooks, html, shown):
    assert hooks.on_page_content(html, None, None, None) == (shown or html)


def test_there_are_the_five_tutorials():
    assert {path.stem for path in TUTORIALS} == {
        "own-model", "images-from-folders", "hugging-face", "continual-learning", "many-machines",
    }  # fmt: skip


def test_a_cell_that_fails_fails_the_build(hooks, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setattr(hooks, "CACHE", tmp_path / "kept")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    with pytest.raises(Exception, match=r"wrong\.ipynb: a cell failed"):
        hooks.executed(tmp_path / "wrong.ipynb")


def test_a_figure_is_shown_whatever_draws_outside(hooks, tmp_path, monkeypatch):
    """As under `make`, which sets a backend that shows nothing."""
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setattr(hooks, "CACHE", tmp_path / "kept")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cell = nbformat.v4.new_code_cell("import matplotlib.pyplot as plt\nplt.figure()\nplt.plot([0, 1]);")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "drawn.ipynb")
    text, pictures = hooks.rendered(hooks.executed(tmp_path / "drawn.ipynb"), "drawn")
    assert "(drawn-0.png)" in text
    assert list(pictures) == ["drawn-0.png"]


def test_the_browser_says_nothing(site, browser):
    """Scripts of the theme run, and neither a script nor a style is missing."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for page in ("index.html", "api/rules.html", "tutorials/own-model.html"):
            with browser.page(f"http://127.0.0.1:{server.server_port}/{page}") as visit:
                assert not visit.console(), page
                visit.wait("document.documentElement.classList.contains('js')")  # the theme's script ran
        server.shutdown()

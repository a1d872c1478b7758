"""What the documentation site is built with beside mkdocs: executed notebooks, the reference, files of the tree.

Three kinds of pages have no file in docs/. A tutorial is a notebook without outputs, which is executed here: a cell
that fails fails the build. The pages of the reference list every name that a public package exports. And documents that
stand elsewhere in the tree, such as CONTRIBUTING.md, become pages; a link to any other file of the tree takes that file
along, so that no link needs a server.
"""

from __future__ import annotations

import base64
import hashlib
import html as entities
import importlib
import inspect
import os
import posixpath
import re
import shutil
import sys
import typing
from pathlib import Path
from typing import Any

import griffe
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CACHE = ROOT / ".cache" / "notebooks"
DRAWN = "module://matplotlib_inline.backend_inline"
"""How matplotlib draws in a notebook; with the backend Agg, which a Makefile may set, pages would have no figures."""

ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "results/README.md": "records.md",
    "src/warpgrad/README.md": "map.md",
    "README.md": "index.md",
}
"""Document of the tree -> page of the site. The README's place is taken by a home page of its own."""
PACKAGES = (
    "rules", "model", "layers", "tasks", "adaptation", "objectives", "initialisers", "algorithms", "training",
    "analysis", "baselines", "zoo",
)  # fmt: skip
"""The folders whose `__all__` is public, in the order of the map."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
INTERVAL = re.compile(r"\[[−+-]?\d[\d.]*(?:,| to) [−+-]?\d[\d.]*\]")
CODE = re.compile(r"<pre.*?</pre>|<code>(?P<code>[^<]*)</code>", re.DOTALL)
OBJECT = re.compile(r"(<span class=\"doc doc-object-name[^>]*>)([^<]*)(</span>)")
WORD = 20
"""Letters of the longest word of code that a telephone shows on one line of a table."""
SEAM = re.compile(r"(?<=[./_,(=])(?=\w)|(?<=[a-z])(?=[A-Z])")
"""Where a longer one may break."""
TEXT = re.compile(r"<(pre|code|script|style|svg)\b.*?</\1>|<[^>]+>|(?P<text>[^<]+)", re.DOTALL)
TOGETHER = re.compile(  # 60 000, 95 %, App. D, Eq. 11
    r"(?<=\d)[ \n](?=%|\d{3}\b)|(?<=\bApp\.)[ \n](?=[A-J]\b)|(?<=\bEq\.)[ \n](?=\d)|(?<=\bEqs\.)[ \n](?=\d)"
)
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that have no file of their own in docs/."""
    for path, uri in ELSEWHERE.items():
        if uri != "index.md":
            text = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=text))
    for uri, text in reference().items():
        files.append(File.generated(config, uri, content=text))
    for notebook in sorted((DOCS / "tutorials").glob("*.ipynb")):
        text, pictures = rendered(executed(notebook), notebook.stem)
        files.append(File.generated(config, f"tutorials/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that lead out of docs/ lead to the page or the file that the site has in its place."""
    own = next((path for path, uri in ELSEWHERE.items() if uri == page.file.src_uri != "index.md"), None)
    source = ROOT / own if own else DOCS / page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        found = Path(os.path.normpath(source.parent / target))
        if not found.exists():
            return match[0]  # mkdocs says so
        uri = _uri(found, files, config)
        start = posixpath.dirname(page.file.src_uri)
        return f"{match[1]}{posixpath.relpath(uri, start or '.')}{mark}{anchor}{match[3]}"

    if own == "CHANGELOG.md":
        markdown = re.sub(r"^## \[(.+?)\]", r"## \1", markdown, flags=re.MULTILINE)  # these brackets are no links
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What belongs together stays on one line: `[0.94, 1.10]` in a table, `--meta-steps` and 60 000 in a sentence."""
    del page, config, files

    def kept(match: re.Match[str]) -> str:
        return INTERVAL.sub(lambda interval: f'<span class="whole">{interval[0]}</span>', match[0])

    def word(match: re.Match[str]) -> str:
        long = len(entities.unescape(match[0])) > WORD
        return SEAM.sub("<wbr>", match[0]) if long else f'<span class="whole">{match[0]}</span>'

    def code(match: re.Match[str]) -> str:
        return match[0] if match["code"] is None else "<code>" + re.sub(r"\S+", word, match["code"]) + "</code>"

    def text(match: re.Match[str]) -> str:
        return match[0] if match["text"] is None else TOGETHER.sub("\N{NO-BREAK SPACE}", match[0])

    html = TEXT.sub(text, html)
    html = re.sub(r"<td[^>]*>.*?</td>", kept, html, flags=re.DOTALL)
    html = OBJECT.sub(lambda name: name[1] + re.sub(r"(?<=[._])(?=\w)", "<wbr>", name[2]) + name[3], html)
    return CODE.sub(code, html)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Pages that are not in the navigation are a mistake; mkdocs looks only at those with a file in docs/."""
    del config
    known = {page.file.src_uri for page in nav.pages}
    missing = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in known)
    if missing:
        raise PluginError(f"not in the navigation of mkdocs.yml: {', '.join(missing)}")
    return nav


def _uri(path: Path, files: Files, config: MkDocsConfig) -> str:
    """Where the site has this file of the tree; it is taken along if nothing else asked for it."""
    if path.is_dir():
        inside = path / "README.md"
        path = inside if inside.exists() else path.parent / "README.md"
    name = path.relative_to(ROOT).as_posix()
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if path.parent == DOCS / "tutorials" and path.suffix == ".ipynb":
        return f"tutorials/{path.stem}.md"  # the notebook with its outputs
    known = files.get_file_from_path(path.relative_to(DOCS).as_posix()) if path.is_relative_to(DOCS) else None
    if known is not None and known.inclusion.is_included():
        return known.src_uri
    uri = f"tree/{name}" if path.suffix != ".md" else f"tree/{name}.txt"
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return uri


# The reference


def reference() -> dict[str, str]:
    """Page -> its text: one for each public package, one for what `warpgrad` alone exports, and the list of all."""
    top = importlib.import_module("warpgrad")
    named = {name: getattr(top, name) for name in top.__all__ if not name.startswith("__") and name not in PACKAGES}
    first = {id(value): f"warpgrad.{name}" for name, value in named.items()}
    pages, rows = {}, []
    left = set(first.values())
    for folder in PACKAGES:
        package = importlib.import_module(f"warpgrad.{folder}")
        paths = [first.get(id(getattr(package, name)), f"warpgrad.{folder}.{name}") for name in package.__all__]
        left -= set(paths)
        pages[f"api/{folder}.md"] = _reference_page(f"warpgrad.{folder}", package, paths)
        rows += [(path, folder, _first_sentence(getattr(package, path.rpartition(".")[2]))) for path in paths]
    rest = sorted(left)
    pages["api/warpgrad.md"] = _reference_page("warpgrad", top, rest)
    rows += [(path, "warpgrad", _first_sentence(getattr(top, path.rpartition(".")[2]))) for path in rest]
    listed = "\n".join(
        f"| [`{path}`]({folder}.md#{path}) | {sentence} |" for path, folder, sentence in sorted(rows, key=_case)
    )
    pages["api/index.md"] = (
        "# Reference\n\nEvery public name. You will mostly need those directly under `warpgrad`: "
        "`import warpgrad as wg`, then `wg.Learner`.\n\n| name | what it is |\n|---|---|\n" + listed + "\n"
    )
    return pages


def _case(row: tuple[str, str, str]) -> tuple[int, str]:
    return row[0].count("."), row[0].lower()


def _reference_page(title: str, package: Any, paths: list[str]) -> str:
    words = (inspect.getdoc(package) or "").replace("`docs/extending.md`", "[extending](../extending.md)")
    words = words.replace("`README.md` beside this file", "the [code map](../map.md)")
    names = "\n".join(_entry(path) for path in sorted(paths, key=str.lower))
    return f"# {title}\n\n{words}\n\n{names}"


def _entry(path: str) -> str:
    """A function with the name of its file would show the whole file, whose other names have their own entries."""
    name = path.rpartition(".")[2]
    return f"::: {path}\n" + (f"    options: {{members: [{name}]}}\n" if path in sys.modules else "")


def _first_sentence(value: Any) -> str:
    if value is Any or typing.get_origin(value) is not None:
        return "a type alias"
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return "a constant"
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """[DΩ][DΩ]ᵀ is a product, and no link of Markdown."""
    return text.replace("][", "]\\[")


class ExampleSections(griffe.Extension):
    """An `Example:` of a docstring is a session to be set as code, as griffe sets `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            words, found, example = obj.docstring.value.partition("Example:\n")
            obj.docstring.value = _plain(words) + (f"Examples:\n{example}" if found else "")


# The tutorials


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, which are kept for the next build of the same notebook and the same library."""
    key = hashlib.sha256(path.read_bytes() + DRAWN.encode())
    for source in sorted((ROOT / "src").rglob("*.py")):
        key.update(source.read_bytes())
    kept = CACHE / f"{path.stem}-{key.hexdigest()[:16]}.ipynb"
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    if any(cell.get("outputs") for cell in notebook.cells):
        raise PluginError(f"{path.name} holds outputs; clear them, the build makes its own.")
    folder = CACHE / "work" / path.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    try:
        client.execute(env={**os.environ, "MPLBACKEND": DRAWN})
    except CellExecutionError as error:
        raise PluginError(f"{path.name}: a cell failed.\n{error}") from error
    nbformat.write(notebook, kept)
    return notebook


def rendered(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as the text of a page, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                continue  # progress bars
            if output.output_type == "stream":
                parts.append(f'```text title="prints"\n{output.text.rstrip()}\n```')
            elif "image/png" in output.data:
                picture = f"{name}-{len(pictures)}.png"
                pictures[picture] = base64.b64decode(output.data["image/png"])
                parts.append(f"![{cell.metadata.get('alt', 'Figure drawn by the cell above')}]({picture})")
            else:
                parts.append(f'```text title="gives"\n{output.data["text/plain"]}\n```')
    parts.append(f'<a href="{name}.ipynb" download>Download this page as a notebook</a>')
    return "\n\n".join(parts) + "\n", pictures

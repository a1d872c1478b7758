"""One version everywhere: in the package, the citation, the changelog and, where a release is built, its tag."""

from __future__ import annotations

import re
import tomllib

import warpgrad as wg
from tests.support import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
SECTIONS = re.findall(r"^## \[(.+?)\](.*)$", CHANGELOG, flags=re.MULTILINE)
"""(version or "Unreleased", what stands after it), newest first."""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_citation_names_the_version_of_the_package():
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited == wg.__version__


def test_the_changelog_has_a_section_for_the_version_and_one_for_what_comes():
    """Between releases the package bears the next version with `.dev0`; a release has a dated section."""
    names = [name for name, _ in SECTIONS]
    assert names[0] == "Unreleased"
    released = [numbers(name) for name in names[1:]]
    assert released == sorted(released, reverse=True)
    base, development, _ = wg.__version__.partition(".dev")
    if development:
        assert numbers(base) > released[0]
    else:
        assert numbers(base) == released[0]
        unreleased = CHANGELOG.split("## [Unreleased]")[1].split("\n## [")[0]
        assert not unreleased.strip(), "what has changed since a release belongs to the next version, with .dev0"
        assert re.fullmatch(r" - \d{4}-\d\d-\d\d", SECTIONS[1][1]), "a release has a date"


def test_every_group_of_changes_has_one_of_the_six_names_of_the_format():
    groups = re.findall(r"^### (.+)$", CHANGELOG, flags=re.MULTILINE)
    assert groups
    assert set(groups) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_tag_is_the_version(pytestconfig):
    tag = pytestconfig.getoption("tag")
    assert tag in (None, f"v{wg.__version__}"), f"the tag {tag} is not that of version {wg.__version__}"


def test_the_workflows_call_the_targets_that_ci_runs():
    targets = set(re.findall(r"^make (\w+)$", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE))
    assert targets == {"lint", "types", "docs", "slow", "integrations", "dist", "test"}
    workflows = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    called = {name for text in workflows.values() for name in re.findall(r"run: make (\w+)", text)}
    (matrix,) = re.findall(r"target: \[(.+)\]", workflows["tests.yml"])
    assert targets == called | set(matrix.split(", "))
    known = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert targets | called <= known


def test_classifiers_name_every_python_that_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {line.split(" :: ")[-1] for line in project["classifiers"] if " :: Python :: 3." in line}
    tested = set(re.findall(r"\"(3\.\d+)\"", (ROOT / ".github" / "workflows" / "tests.yml").read_text()))
    assert named == tested

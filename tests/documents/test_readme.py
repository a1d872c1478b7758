"""What the README promises is run as it stands."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

ROLES = {"config.py", "methods.py", "evaluation.py", "results.py", "page.py", "experiment.py"}


@pytest.mark.slow
def test_the_twenty_lines_run_and_help(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    before, after = (float(value) for value in re.findall(r"'loss': ([\d.]+)", capsys.readouterr().out))
    assert after < 0.5 * before
    assert type(names["fitted"]).__name__ == "Sequential"
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_every_file_that_the_documents_name_exists():
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} names {target}"


def test_the_map_names_files_that_exist_and_every_folder():
    package = ROOT / "src" / "warpgrad"
    text = (package / "README.md").read_text()
    paths = [name for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", text) if name not in ROLES]
    assert len(paths) > 30
    for name in paths:
        found = (package / name).exists() or any(package.glob(f"*/{name}")) or (ROOT / name).exists()
        assert found, name
    folders = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= {name.split("/")[0] for name in paths}


def test_every_experiment_has_the_roles_that_the_map_names():
    experiments = ROOT / "src" / "warpgrad" / "experiments"
    folders = [path for path in experiments.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert len(folders) >= 6
    for folder in folders:
        assert {f"{role}.py" for role in ("config", "evaluation", "page", "experiment")} <= {
            path.name for path in folder.iterdir()
        }, folder.name

"""What is imported when: nothing heavy for `import warpgrad` or a help text, one sentence where an extra is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import warpgrad
import warpgrad.data
from tests.support import ROOT
from warpgrad.data.prepared import TITLES
from warpgrad.errors import WarpgradError
from warpgrad.experiments import DECLARATIONS, EXPERIMENTS, find_declaration, find_experiment
from warpgrad.lazy import naming_extras

OPTIONAL = ("PIL", "gymnasium", "jinja2", "matplotlib", "optuna", "rich", "scipy", "tyro", "tensorboard")
HELPS = [
    ["--help"],
    ["list", "--help"],
    *(
        [command, "--help"]
        for command in ("run", "evaluate", "adapt", "report", "reproduce", "sweep", "data", "verify", "demo")
    ),
    *([command, name, "--help"] for command in ("run", "sweep") for name in DECLARATIONS),
    *(["data", command, "--help"] for command in ("prepare", "draw", "montage")),
    *(["data", "prepare", name, "--help"] for name in (*(name for name in TITLES if name != "drawn"), "folder")),
]


def python(program: str) -> str:
    """What the program prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_needs_no_extra():
    """Not even where every public name is used; and `import warpgrad` alone does not need torch."""
    program = f"""
import sys, warpgrad
assert "torch" not in sys.modules
for name in warpgrad.__all__:
    getattr(warpgrad, name)
assert "torch" in sys.modules
print([name for name in {OPTIONAL} if name in sys.modules])
"""
    assert python(program) == "[]"


def test_every_help_text_has_an_example_and_needs_no_torch():
    """Torch takes longer to import than everything else together."""
    program = f"""
import contextlib, io, sys
from warpgrad.cli.main import main
for words in {HELPS}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main(words)
        except SystemExit as stop:
            assert stop.code == 0, words
    assert "Example: warpgrad " in said.getvalue(), words
    for name in ("torch", "numpy", "matplotlib", "PIL", "gymnasium", "optuna"):
        assert name not in sys.modules, (words, name)
"""
    python(program)


@pytest.mark.parametrize("package", [warpgrad, warpgrad.data])
def test_every_listed_name_is_there_and_every_other_is_refused(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    # A module of the package would take the place of a name that is imported lazily.
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    assert not {name for name in modules & set(package.__all__) if not isinstance(getattr(package, name), ModuleType)}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_a_missing_extra_is_named_with_its_command(monkeypatch):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for module, distribution, extra in (
        ("PIL", "pillow", "paper"),
        ("tyro", "tyro", "paper"),
        ("matplotlib", "matplotlib", "paper"),
        ("bokeh", "bokeh", "paper"),
        ("optuna", "optuna", "sweep"),
        ("tensorboard", "tensorboard", "tensorboard"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        sentence = rf"{module} is not installed: pip install 'warpgrad\[{extra}\]'\."
        with pytest.raises(WarpgradError, match=sentence), naming_extras():
            __import__(module)
        assert any(line.startswith(distribution) for line in extras["optional-dependencies"][extra])
        assert not any(line.startswith(distribution) for line in extras["dependencies"])
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), naming_extras():
        __import__("no_such_module")


def test_the_command_line_says_which_extra_it_needs():
    program = """
import sys
sys.modules["tyro"] = None
from warpgrad.cli.main import main
try:
    main(["run", "synthetic"])
except SystemExit as stop:
    print(stop.code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2"
    assert done.stderr == "warpgrad: tyro is not installed: pip install 'warpgrad[paper]'.\n"


def test_an_experiment_is_what_it_declares():
    for name in DECLARATIONS:
        declared, experiment = find_declaration(name), find_experiment(name)
        assert isinstance(experiment, type(declared))
        assert experiment.name == declared.name == name
        assert experiment is EXPERIMENTS[name]
    assert list(DECLARATIONS) == list(EXPERIMENTS)
    with pytest.raises(WarpgradError, match="there is no experiment 'golf'; choose one of synthetic, omniglot"):
        find_declaration("golf")

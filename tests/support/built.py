"""Do the archives in a folder work on their own?

    python -m tests.support.built dist

The wheel is installed by itself into a new environment, with nothing of the source tree in reach, and used: the list of
commands, a first experiment with its report, the first part of the demonstration. The source archive is unpacked, and
some of its tests are run in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

from tests.support import ROOT

TESTS = ("tests/test_rules.py", "tests/tasks", "tests/documents/test_release.py", "tests/public/test_surface.py")
"""What is run in the unpacked source archive: quick, and reading tests, documents and records beside the package."""

EXAMPLE = """
import importlib.util, pathlib, sys
import warpgrad as wg
assert "site-packages" in wg.__file__, wg.__file__
assert (pathlib.Path(wg.__file__).parent / "py.typed").exists()
assert not [name for name in ("matplotlib", "tyro", "transformers") if name in sys.modules], "imported by the library"
for name in wg.zoo.names():
    wg.zoo.load(name)
assert "synthetic-long" in wg.zoo.names()
print(wg.__version__)
"""


def run(command: list[str | Path], folder: Path, **variables: str) -> None:
    """A command away from the source tree; what it says, and an end where it fails."""
    print(f"$ {' '.join(str(word) for word in command)}", flush=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run(command, cwd=folder, env={**kept, **variables}, check=True)


def check_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel alone, and use it as a newcomer does."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    pip: list[str | Path] = [
        programs / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
    ]
    run([*pip, f"{wheel}[paper]"], folder)
    run([programs / "python", "-c", EXAMPLE], folder)
    for words in (["--version"], ["list"]):
        run([programs / "warpgrad", *words], folder)
    run(
        [programs / "warpgrad", "run", "synthetic", "--meta-steps", "3", "--test-surfaces", "3", "--out", "run"], folder
    )
    run([programs / "warpgrad", "report", "run", "--out", "page.html"], folder)
    assert (folder / "page.html").stat().st_size > 1000
    run([programs / "warpgrad", "demo", "--surfaces-only"], folder, OMP_NUM_THREADS="1")
    assert (folder / "runs" / "demo" / "index.html").stat().st_size > 100_000


def check_source(archive: Path, folder: Path) -> None:
    """Unpack the source archive, and run tests in it with the packages of this environment."""
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (tree,) = [path for path in folder.iterdir() if path.is_dir()]
    # In front of an editable installation of the working tree.
    run([sys.executable, "-m", "pytest", "-n", "2", *TESTS], tree, PYTHONPATH=str(tree / "src"))


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    for check, built in ((check_source, archive), (check_wheel, wheel)):
        with tempfile.TemporaryDirectory() as scratch:
            check(built, Path(scratch))


if __name__ == "__main__":
    main()

"""All settings are in pyproject.toml; this adds to a wheel or source archive the commit that it is built from."""

import importlib.util
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PACKAGE = Path(__file__).parent / "src" / "warpgrad"


def keep_commit(folder: Path) -> None:
    """Write the commit of this source into a package that is being built."""
    spec = importlib.util.spec_from_file_location("version", PACKAGE / "version.py")
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    if (commit := version.commit(PACKAGE)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / version.FILE).write_text(commit + "\n")


class Build(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            keep_commit(Path(self.build_lib) / "warpgrad")


class Archive(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        keep_commit(Path(base_dir) / "src" / "warpgrad")


setup(cmdclass={"build_py": Build, "sdist": Archive})

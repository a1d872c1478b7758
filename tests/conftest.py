"""What all tests share: one thread per process, a known random state, and a browser where there is one."""

import shutil
import subprocess

import pytest
import torch

from tests.support.problems import along_coordinates, along_directions

# The suite uses the cores side by side, and sums keep their order.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--tag", help="the tag of a release, which must be the version's")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Modules that a test builds draw their weights from a known state."""
    torch.manual_seed(0)


@pytest.fixture(params=[along_directions, pytest.param(along_coordinates, marks=pytest.mark.slow)])
def gradient_error(request):
    """gradient_error(found, function, parameters): how far a gradient is from central differences of the function."""
    return request.param


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """visit(path) -> (the page after its script ran, what the browser's console said about it)."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is on PATH (apt-get install chromium)")

    def visit(path):
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        options += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-quic"]
        profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
        command = [program, *options, "--enable-logging=stderr", profile, "--v=0", "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return visit

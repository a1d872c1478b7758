"""What all tests share: one thread per process, a known random state, and a browser where there is one."""

import pytest
import torch

from tests.support.browser import NAMES, Browser, program
from tests.support.problems import along_coordinates, along_directions

# The suite uses the cores side by side, and sums keep their order.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--tag", help="the tag of a release, which must be the version's")
    parser.addoption("--site", help="the folder of the built documentation, for the tests of it (make docs)")


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
    """A headless Chromium; `browser.page(path, width=…, dark=…)` opens a page in it."""
    if program() is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is on PATH (apt-get install chromium)")
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()

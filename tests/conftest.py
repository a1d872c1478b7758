"""One thread per test process: the suite uses the cores side by side, and sums keep their order."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Modules that a test builds draw their weights from a known state."""
    torch.manual_seed(0)

"""What several tests share: problems with known answers, tiny runs and stores, and jobs for other processes."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

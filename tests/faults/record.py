"""What the harnesses of this folder have counted, kept in results/reliability.json with commit, machine and command."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpgrad.io import write_json
from warpgrad.training.resources import hardware, versions
from warpgrad.version import commit

FORMAT = "warpgrad-reliability"


def on_record(path: Path | None, harness: str, name: str) -> dict[str, Any] | None:
    """What a record has of one part of a harness at this commit; None where it has nothing."""
    if path is None or not path.exists():
        return None
    found: dict[str, Any] | None = json.loads(path.read_bytes())["harnesses"].get(harness, {}).get(name)
    return found if found is not None and found["commit"] == commit() else None


def put_on_record(path: Path | None, harness: str, name: str, counts: Mapping[str, Any]) -> None:
    """Replace what a record has of one part of a harness; all else in it stays."""
    if path is None:
        return
    kept = json.loads(path.read_bytes()) if path.exists() else {"format": FORMAT, "harnesses": {}}
    kept.pop("sha256", None)
    program = "pytest" if harness == "fuzz" else f"tests.faults.{Path(sys.argv[0]).stem}"
    command = " ".join(["python -m", program, *sys.argv[1:]])
    made_by = {"commit": commit(), "hardware": hardware(), "versions": versions(), "command": command}
    kept["harnesses"].setdefault(harness, {})[name] = {**counts, **made_by}
    write_json(path, kept, seal=True)

"""The result tables of README.md and docs/, built from the records in results/.

    python docs/tables.py           write every table and number anew
    python docs/tables.py --check   only say which of them differ

A table stands between two comments, and is the one that `warpgrad reproduce` prints:

    <!-- table {"record": "omniglot.json"} -->
    <!-- end -->

and with "search": true the winners of a search.

Records made before results per task were kept (`results/before/`) have final metrics alone. Their tables name them, and
may be held against a row: {"record": "before/omniglot.json", "metrics": {"accuracy": "accuracy, %"}, "digits": 1,
"against": "Warp-Leap"}. A single result in a sentence or a cell names its record, row and measure, and where it is a
difference the row it is against (a bar would end a cell, so colons part them):

    <!--= omniglot.json :: Warp-Leap :: accuracy_128 :: minus Leap -->8.0<!--/-->

What the harnesses of tests/faults and tests/fuzz have counted is a table by the name of the harness, or a sum:

    <!-- table {"record": "reliability.json", "harness": "crash"} -->
    <!--= reliability.json :: crash :: faults -->1275<!--/-->
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from warpgrad.experiments import find_experiment
from warpgrad.experiments.comparison import search_lines, trials_of
from warpgrad.experiments.records import read_record
from warpgrad.statistics.estimates import Difference, Estimate, mean_interval, paired_difference

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

TABLE = re.compile(r"(<!-- table (\{.*?\}) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(<!--= (.*?) -->)(.*?)(<!--/-->)")

Scores = dict[int, dict[str, float]]
"""Meta-seed -> held-out task -> score."""


@cache
def entries(record: str) -> list[dict[str, Any]]:
    """The runs of a record, of either format."""
    content = json.loads((RESULTS / record).read_bytes())
    found: list[dict[str, Any]] = content["runs"] if isinstance(content, dict) else content
    return found


def scores(record: str, label: str, measure: str) -> Scores:
    """A measure of one row; where it was not kept per task, its mean over tasks stands for all of them."""
    found: Scores = {}
    for entry in entries(record):
        if entry["label"] == label:
            per_task = entry.get("evaluation", {}).get(measure)
            metrics = entry["summary"]["metrics"]
            values = per_task if isinstance(per_task, dict) else {"all": metrics[measure]}
            found[int(entry["summary"]["seed"])] = values
    if not found:
        raise SystemExit(f"results/{record} has no row '{label}'.")
    return found


def estimate(record: str, label: str, measure: str) -> Estimate:
    return mean_interval(scores(record, label, measure), name=label)


def difference(record: str, label: str, other: str, measure: str) -> Difference | None:
    """The paired difference over the meta-seeds that both rows have."""
    ours, theirs = scores(record, label, measure), scores(record, other, measure)
    shared = sorted(set(ours) & set(theirs))
    if not shared:
        return None
    pair = ({seed: own[seed] for seed in shared} for own in (ours, theirs))
    return paired_difference(*pair, names=(label, other))


def cell(found: Estimate | None, digits: int) -> str:
    """The mean; with an interval where four meta-seeds or more give one."""
    if found is None:
        return ""
    if found.indicative:
        sign = "+" if isinstance(found, Difference) and found.mean > 0 else ""
        return f"{sign}{found.mean:.{digits}f}".replace("-", "−")
    return found.cell(digits)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as text."""
    names = list(header)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "".join(f"| {' | '.join(item.replace('|', '/') for item in line)} |\n" for line in lines)


def built(spec: Mapping[str, Any]) -> str:
    """The table that a comment asks for."""
    record = str(spec["record"])
    if "harness" in spec:
        return counted(harnesses(record)[spec["harness"]])
    if "metrics" not in spec:
        known = read_record(RESULTS / record)
        groups = known.groups()
        experiment = find_experiment(groups[0].runs[0].experiment)
        if spec.get("search"):
            metric = experiment.sweep_metric
            return markdown(*search_lines(trials_of(groups, metric, known.diverged), metric))
        return markdown(*experiment.lines(groups))
    digits, against = int(spec.get("digits", 1)), spec.get("against")
    header = ["", "seeds", "meta-steps"]
    for title in spec["metrics"].values():
        header += [title] if against is None else [title, f"minus {against}"]
    rows = []
    for label in dict.fromkeys(entry["label"] for entry in entries(record)):
        own = [entry for entry in entries(record) if entry["label"] == label]
        row = [label, str(len(own)), str(own[0]["summary"]["steps"])]
        for measure in spec["metrics"]:
            row.append(cell(estimate(record, label, measure), digits))
            if against is not None:
                row.append("" if label == against else cell(difference(record, label, against, measure), digits))
        rows.append(row)
    return markdown(header, rows)


def harnesses(record: str) -> dict[str, dict[str, dict[str, Any]]]:
    """What each harness has counted, by the parts of it."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads((RESULTS / record).read_bytes())["harnesses"]
    return found


def counted(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Counts as a table: a row for each part, a column for each count that any of them has."""
    names = dict.fromkeys(name for part in parts.values() for name, value in part.items() if type(value) is int)
    rows = [
        [part, *(str(found.get(name, "")) for name in names), str(len(found["failures"])), f"`{found['commit'][:7]}`"]
        for part, found in parts.items()
    ]
    return markdown(["", *names, "failures", "commit"], rows)


def result(words: str) -> str:
    """The single number that a comment asks for."""
    record, label, measure, *rest = (word.strip() for word in words.split("::"))
    if label in ("crash", "soak", "flips", "lines", "fuzz", "ranks"):
        found = [part[measure] for part in harnesses(record)[label].values()]
        total = sum(len(value) if isinstance(value, list) else value for value in found)
        return f"{total:.0e}" if isinstance(total, float) else str(total)
    digits = int(next((word.removeprefix("digits ") for word in rest if word.startswith("digits ")), "1"))
    other = next((word.removeprefix("minus ") for word in rest if word.startswith("minus ")), None)
    if other is not None:
        return cell(difference(record, label, other, measure), digits)
    return cell(estimate(record, label, measure), digits)


def renewed(text: str) -> str:
    """A document with its tables and numbers as the records have them."""
    text = TABLE.sub(lambda match: f"{match[1]}{built(json.loads(match[2]))}{match[4]}", text)
    return NUMBER.sub(lambda match: f"{match[1]}{result(match[2])}{match[4]}", text)


def main() -> int:
    options = argparse.ArgumentParser(description="Build the result tables of the documents from the records.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a document differs")
    check = options.parse_args().check
    stale = [path for path in DOCUMENTS if renewed(path.read_text()) != path.read_text()]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'differs from the records' if check else 'written'}")
        if not check:
            path.write_text(renewed(path.read_text()))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""The page docs/claims.md: every empirical claim of the paper beside what is on record here.

    python docs/claims.py           write the page anew
    python docs/claims.py --check   only say whether it differs

The claims stand in claims.json, group by group. A claim has the checks that would support it, each on rows of the table
(`warpgrad reproduce TABLE`, on record as results/TABLE.json) or, of costs, on numbers of another record:

    {"row": "Warp-Leap", "against": "Leap", "measure": "accuracy_128", "sign": "+"}

Lists stand for every combination of their items, and `for` fills in letters: "row": "Leap, {N} tasks" for [{"N": 5}].
`threshold` is what the difference, or without `against` and `measure_against` the mean, must lie above (`+`) or below
(`-`); it is 0 unless given. A measure is a path into the run's evaluation (`orders > sequential > per_task > loss >
old`), into its final metrics (`metrics > …`) or its series over meta-steps: `series > validation/return > 10000` is the
mean over the last tenth of the first 10 000. Of costs, rows are paths into the record, held as a ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

from tables import RESULTS, ROOT, Scores, cell, markdown

from warpgrad.experiments.records import Record, read_record, unpacked_series
from warpgrad.io import write_bytes
from warpgrad.statistics.estimates import Estimate, mean_interval, paired_difference
from warpgrad.statistics.formatting import number

CLAIMS = ROOT / "docs" / "claims.json"
PAGE = ROOT / "docs" / "claims.md"
SHOWN = 4
"""Of more checks than these a claim shows the weakest alone."""

Verdict = Literal["supported", "indicative", "contradicted", "untested"]
VERDICTS: tuple[Verdict, ...] = ("supported", "indicative", "untested", "contradicted")
"""From the strongest to the weakest: a claim is as strong as its weakest check."""

HEAD = """# The paper's claims

Every empirical claim of [the paper](https://arxiv.org/abs/1909.00025), what we have on record about it, and what would
support it. `python docs/claims.py` builds this page from [`claims.json`](claims.json) and [`results/`](../results);
records in `results/before/` do not count as evidence. Where the paper gives two figures for the same thing, both are
listed.

A check is a paired difference over the same meta-seeds and held-out tasks, or the mean of one row, with a 95 % interval
clustered by meta-seed. With fewer than four meta-seeds, only the mean is given. "Above" and "below" give the direction
that the paper claims; if several rows or measures are named, it must hold for each.

- **supported**: the claimed sign, an interval that excludes zero (or the threshold), and at least four meta-seeds;
- **indicative**: the claimed sign, with fewer meta-seeds or an interval that includes zero;
- **contradicted**: the opposite sign, with an interval that excludes zero or with fewer than four meta-seeds;
- **untested**: nothing on record, or the opposite sign over at least four meta-seeds with an interval that includes
  zero, which is inconclusive.

A claim with several checks is as strong as its weakest, in the order supported, indicative, untested, contradicted.
Costs have no meta-seeds: they are supported if the whole range over repetitions is on the paper's side, contradicted if
none of it is, and otherwise indicative. Omniglot is tested at batches of 128 and of 20 (the paper states neither), and
a claim must hold at both. CIFAR-FS stands in for miniImageNet and FC100 for the multi-shot tieredImageNet; sizes are
those of the presets. Where the paper only uses words ("minor", "similar", "of the order of"), the thresholds are ours.
"""


@dataclass(frozen=True)
class Check:
    """One comparison that a claim rests on."""

    record: str
    row: str
    measure: str
    sign: str
    against: str | None = None
    measure_against: str | None = None
    threshold: float = 0.0
    absolute: bool = False

    @property
    def single(self) -> bool:
        """Whether it holds one row's mean against the threshold."""
        return self.against is None and self.measure_against is None

    @property
    def other(self) -> tuple[str, str]:
        """The row and the measure that it is held against."""
        return self.against or self.row, self.measure_against or self.measure

    def words(self) -> str:
        return words({name: value for name, value in vars(self).items() if value is not None})


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def words(stated: Mapping[str, Any], *, ratio: bool = False) -> str:
    """What must hold, e.g. `*Warp-Leap* − *Leap*: accuracy_128 above 0`; of costs rows are paths, held as a ratio."""

    def joined(*names: str, row: bool = False) -> str:
        cells = [", ".join(_shown(item, row=row) for item in listed(stated[name])) for name in names if name in stated]
        return (" / " if ratio else " − ").join(cells)

    rows = joined("row", "against", row=not ratio)
    measures = "" if ratio else f": {'absolute ' * stated.get('absolute', False)}{joined('measure', 'measure_against')}"
    side = f"{'above' if stated['sign'] == '+' else 'below'} {number(stated.get('threshold', 0))}"
    letters = stated.get("for", [])
    filled = ", ".join(" ".join(map(str, own.values())) for own in letters)
    return f"{rows}{measures} {side}" + (f", for {' '.join(letters[0])} = {filled}" if letters else "")


def _shown(name: str, *, row: bool) -> str:
    """A row or a measure, with the letters that `for` fills in as they are."""
    plain = name.replace("{", "").replace("}", "")
    return f"*{plain}*" if row else f"`{plain.replace(' > ', '/')}`"


@dataclass(frozen=True)
class Found:
    """What the record says to a check."""

    check: Check
    verdict: Verdict
    ours: str
    margin: float
    """How far on the paper's side of the threshold; the smallest is the weakest."""
    sizes: tuple[str, ...] = ()


@cache
def record_of(name: str) -> Record | None:
    path = RESULTS / name
    return read_record(path) if path.exists() else None


@cache
def costs_of(name: str) -> Any:
    path = RESULTS / name
    return json.loads(path.read_bytes()) if path.exists() else None


def load() -> list[dict[str, Any]]:
    """The groups of claims."""
    groups: list[dict[str, Any]] = json.loads(CLAIMS.read_bytes())
    return groups


def claims() -> Iterator[dict[str, Any]]:
    for group in load():
        yield from group["claims"]


def record_name(claim: Mapping[str, Any]) -> str | None:
    """The file in results/ that a claim is tested by; None where nothing declared tests it."""
    if "record" in claim:
        return str(claim["record"])
    return None if claim.get("table") is None else f"{claim['table']}.json"


def checks_of(claim: Mapping[str, Any]) -> list[Check]:
    """The checks of a claim, spelled out."""
    found = []
    for stated in claim.get("checks", ()):
        lists = {name: listed(value) for name, value in stated.items() if name != "for"}
        for letters, values in product(stated.get("for", [{}]), product(*lists.values())):
            filled = (value.format(**letters) if isinstance(value, str) else value for value in values)
            own = dict(zip(lists, filled, strict=True))
            found.append(Check(record=str(record_name(claim)), measure=own.pop("measure", ""), **own))
    return found


def read(entry: Mapping[str, Any], path: str, *, absolute: bool) -> dict[str, float] | None:
    """Held-out task -> score, or one mean for all of them where no more was kept; None where the run is too short."""
    root, *parts = path.split(" > ")
    if root == "series":
        name, until = parts
        last = int(until)
        lines = unpacked_series(entry["series"])
        values = [line[name] for line in lines if name in line and 0.9 * last < line["step"] + 1 <= last]
        return {"all": math.fsum(values) / len(values)} if values else None
    value: Any = entry["summary"]["metrics"] if root == "metrics" else entry["evaluation"][root]
    for part in parts:
        value = value[int(part)] if isinstance(value, list) else value[part]
    if isinstance(value, list) and isinstance(value[0], list):  # by step and layer: means over steps
        value = [math.fsum(own) / len(own) for own in zip(*value, strict=True)]
    if isinstance(value, list):
        value = {str(place): own for place, own in enumerate(value) if own is not None}
    scores = value if isinstance(value, dict) else {"all": value}
    return {task: abs(score) if absolute else score for task, score in scores.items()}


def scores_of(record: Record, label: str, path: str, *, absolute: bool) -> Scores:
    """A measure of one row, of the runs that got so far."""
    found: Scores = {}
    for entry in record.entries:
        if entry["label"] == label:
            scores = read(entry, path, absolute=absolute)
            if scores is not None:
                found[int(entry["summary"]["seed"])] = scores
    return found


def estimate_of(record: Record, check: Check) -> Estimate | None:
    """The mean or the paired difference, over the meta-seeds that both rows have; None where there are none."""
    ours = scores_of(record, check.row, check.measure, absolute=check.absolute)
    if check.single:
        return mean_interval(ours, name=check.row) if ours else None
    theirs = scores_of(record, *check.other, absolute=check.absolute)
    shared = sorted(set(ours) & set(theirs))
    if not shared:
        return None
    pair = ({seed: own[seed] for seed in shared} for own in (ours, theirs))
    return paired_difference(*pair, names=(check.row, check.other[0]))


def verdict(found: Estimate, threshold: float, sign: str) -> Verdict:
    """The rule that the page states."""
    towards = 1.0 if sign == "+" else -1.0
    agrees = towards * (found.mean - threshold) > 0
    told_apart = found.interval.bounded and threshold not in found.interval
    if agrees:
        return "supported" if told_apart and not found.indicative else "indicative"
    if found.indicative:
        return "contradicted" if found.mean != threshold else "untested"
    return "contradicted" if told_apart else "untested"


def weakest(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=VERDICTS.index, default="untested")


def size_of(record: Record, check: Check, found: Estimate) -> str:
    rows = {check.row, check.other[0]}
    steps = sorted({int(entry["summary"]["steps"]) for entry in record.entries if entry["label"] in rows} - {0})
    seeds = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    return f"`{record.preset}`, {seeds}" + (f", {' or '.join(map(str, steps))} meta-steps" if steps else "")


def tested(check: Check, digits: int) -> Found:
    """What the record of a table says."""
    record = record_of(check.record)
    found = None if record is None else estimate_of(record, check)
    if record is None or found is None:
        return Found(check, "untested", "", -math.inf)
    towards = 1.0 if check.sign == "+" else -1.0
    return Found(
        check,
        verdict(found, check.threshold, check.sign),
        cell(found, digits),
        towards * (found.mean - check.threshold),
        (size_of(record, check, found),),
    )


def number_at(content: Any, path: str) -> tuple[float, float, float]:
    """A number of another record, with its range: `growth > axis=K, name=MAML > exponent` chooses from a list."""
    for part in path.split(" > "):
        if "=" in part:
            wanted = dict(item.split("=") for item in part.split(", "))
            (content,) = [own for own in content if all(str(own[key]) == value for key, value in wanted.items())]
        else:
            content = content[part]
    if isinstance(content, dict):
        return float(content["low"]), float(content["median"]), float(content["high"])
    return (float(content),) * 3


def measured(check: Check, digits: int) -> Found:
    """What a record of costs says: a number, or the ratio of two."""
    content = costs_of(check.record)
    if content is None:
        return Found(check, "untested", "", -math.inf)
    low, middle, high = number_at(content, check.row)
    if check.against is not None:
        least, median, most = number_at(content, check.against)
        low, middle, high = low / most, middle / median, high / least
    towards = 1.0 if check.sign == "+" else -1.0
    sides = {towards * (end - check.threshold) > 0 for end in (low, high)}
    said: Verdict = "indicative" if len(sides) > 1 else "supported" if True in sides else "contradicted"
    ours = number(middle, digits) + ("" if low == high else f" [{number(low, digits)} to {number(high, digits)}]")
    return Found(check, said, ours, towards * (middle - check.threshold), ("one machine",))


def results_of(claim: Mapping[str, Any]) -> list[Found]:
    judge = measured if "record" in claim else tested
    return [judge(check, int(claim.get("digits", 1))) for check in checks_of(claim)]


def support(claim: Mapping[str, Any]) -> str:
    """The command, and what its table must show."""
    if not claim["checks"]:
        return "no declared table"
    said = "; ".join(words(stated, ratio="record" in claim) for stated in claim["checks"])
    return f"`{claim['command']}`<br>{said}"


def ours(found: Sequence[Found]) -> str:
    """The numbers; of many checks the weakest."""
    known = [one for one in found if one.ours]
    if not known:
        return ""
    if len(found) > SHOWN:
        least = min(known, key=lambda one: one.margin)
        agreeing = sum(one.margin > 0 for one in known)
        return f"{agreeing} of {len(found)} with the paper's sign; weakest {least.ours} ({least.check.words()})"
    alike = len({one.verdict for one in found}) == 1
    return "; ".join(dict.fromkeys(one.ours if alike else f"{one.ours or 'none'} ({one.verdict})" for one in found))


def why(claim: Mapping[str, Any], said: Verdict, found: Sequence[Found]) -> str:
    """Why a claim is untested or contradicted, and what is next."""
    name, note = record_name(claim), str(claim.get("note", ""))
    if said == "contradicted" or not found:
        return note
    if name is None or not RESULTS.joinpath(name).exists():
        reason = f"`results/{name}` does not exist yet."
    elif any(not one.ours for one in found):
        reason = f"`results/{name}` has not all of its rows, or not for long enough."
    else:
        reason = "the sign is not the paper's, within an interval that includes zero; it takes more meta-seeds."
    return f"{reason} {note}".strip()


def page() -> str:
    """The document."""
    parts, verdicts = [], []
    for group in load():
        rows: list[list[str]] = []
        notes: dict[str, list[str]] = {}
        for claim in group["claims"]:
            found = results_of(claim)
            said = weakest(one.verdict for one in found)
            verdicts.append(said)
            size = "; ".join(dict.fromkeys(size for one in found for size in one.sizes))
            words = f"{claim['claim']} ({claim['section']})"
            rows.append([f"{claim['id']}. {words}", f"**{said}**", ours(found), claim["paper"], size, support(claim)])
            if said in ("contradicted", "untested"):
                notes.setdefault(f"{said}: {why(claim, said, found)}", []).append(claim["id"])
        header = ["claim", "verdict", "ours", "paper", "size", "what would support it"]
        about = f"{group['about']}\n\n" if "about" in group else ""
        parts.append(f"## {group['group']}\n\n{about}{markdown(header, rows)}")
        if notes:
            parts.append("".join(f"- {', '.join(names)}, {words}\n" for words, names in notes.items()))
    counts = ", ".join(
        f"{verdicts.count(one)} {one}" for one in ("supported", "indicative", "contradicted", "untested")
    )
    return "\n".join([HEAD, f"Of {len(verdicts)} claims: {counts}.\n", *parts])


def main() -> int:
    options = argparse.ArgumentParser(description="Build the page of the paper's claims from the records.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page differs")
    check = options.parse_args().check
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)}: {'differs from the records' if check else 'written'}")
    if not check:
        write_bytes(PAGE, text.encode())
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())

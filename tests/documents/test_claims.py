"""The page of the paper's claims: built from the records, on declared tables and rows, by the rule that it states."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from tests.support import ROOT
from warpgrad.errors import WarpgradError
from warpgrad.experiments import DECLARATIONS
from warpgrad.experiments.records import Record

MEASURES = {
    "synthetic": r"(final|matched > final|reached) > \w+|curves > \w+ > \d+|curvature > \w+ > (theta|x|scaled)",
    "omniglot": r"(accuracy|auc)_(128|20|200)|activations > (128|20) > (mean|distance)_(before|after)( > (-1|0))?",
    "few-shot": r"accuracy",
    "multi-shot": r"(accuracy|auc)(_at_end)?|series > test/accuracy > \d+",
    "maze": r"returns > (agent|forgetting|wandering)|series > validation/return > \d+|metrics > parameters/task",
    "continual": r"orders > \w+ > (per_task > log10 loss > (new|old)|curves > log10 loss > \d+ > [0-4])",
}
"""What an evaluation of each experiment holds, as far as claims ask for it."""


def load_claims():
    """The script, which imports the one beside it."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("claims")
    finally:
        sys.path.remove(str(ROOT / "docs"))


claims = load_claims()
ALL = list(claims.claims())
TABLES = {table.name: (name, table) for name, own in DECLARATIONS.items() for table in own.tables}
DECLARED = [claim for claim in ALL if claim.get("table")]


def named(claim):
    return claim["id"]


def test_the_page_is_what_the_script_builds():
    assert claims.page() == claims.PAGE.read_text(), "python docs/claims.py writes it anew"


def test_ids_are_unique_and_in_order():
    assert [claim["id"] for claim in ALL] == [f"C{place:02d}" for place in range(1, len(ALL) + 1)]


def test_a_claim_has_all_its_parts_and_no_other():
    for claim in ALL:
        needed = {"id", "section", "claim", "paper", "checks", "record" if "record" in claim else "table"}
        needed |= {"command"} if claim["checks"] else {"note"}
        assert needed <= claim.keys() <= needed | {"digits", "note"}, claim["id"]
        assert all(check.sign in ("+", "-") for check in claims.checks_of(claim)), claim["id"]


@pytest.mark.parametrize("claim", DECLARED, ids=named)
def test_a_claim_names_a_declared_table_its_rows_and_their_measures(claim):
    experiment, table = TABLES[claim["table"]]
    command = re.fullmatch(r"warpgrad reproduce (\S+)(?: --preset (\S+))?", claim["command"])
    assert command is not None
    assert command[1] == table.name
    preset = command[2] or table.preset
    assert preset in DECLARATIONS[experiment].presets
    rows = {row.label for row in table.rows_at(preset)}
    for check in claims.checks_of(claim):
        row, measure = check.other
        assert {check.row, row} <= rows
        assert re.fullmatch(MEASURES[experiment], check.measure), check.measure
        assert re.fullmatch(MEASURES[experiment], measure), measure
        # A row against itself would be zero whatever the record says.
        assert check.single or (row, measure) != (check.row, check.measure)


def test_a_record_is_of_the_table_that_it_is_named_after():
    for claim in DECLARED:
        record = claims.record_of(claims.record_name(claim))
        assert record is None or record.table == claim["table"]


def test_no_claim_rests_on_a_record_of_before():
    assert not [claim["id"] for claim in ALL if "before" in str(claims.record_name(claim))]


def test_what_is_contradicted_has_a_line_that_says_why():
    for claim in ALL:
        verdict = claims.weakest(found.verdict for found in claims.results_of(claim))
        assert verdict != "contradicted" or claim.get("note"), f"{claim['id']} is contradicted: add a note to it"


# The rule, on made-up records


def made_up(**rows):
    """A record: row -> scores of its seeds, each on two held-out tasks that lie 10 apart."""
    entries = [
        {
            "label": label,
            "summary": {"seed": seed, "steps": 40, "metrics": {"size": score}},
            "evaluation": {
                "accuracy": {"a": score - 5, "b": score + 5},
                "by_layer": [[score, -score], [score + 2, -score - 2]],
                "surfaces": [score, None, score + 1],
            },
            "series": {"block": 1, "step": [0, 9, 18, 19], "return": [[9, score], [18, score + 1], [19, score + 3]]},
        }
        for label, scores in rows.items()
        for seed, score in enumerate(scores)
    ]
    return Record("made-up", "", "small", dict.fromkeys(rows), entries)


def found(monkeypatch, record, **stated):
    monkeypatch.setattr(claims, "record_of", lambda name: record)
    return claims.tested(claims.Check("made-up.json", **{"measure": "accuracy", "sign": "+", **stated}), 1)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([72.0, 73.0, 72.0, 73.0], "supported"),
        ([72.0, 73.0, 72.0], "indicative"),  # three seeds
        ([72.0], "indicative"),
        ([71.0, 69.5, 72.0, 68.5], "indicative"),  # the interval includes zero
        ([69.0, 70.5, 68.0, 71.5], "untested"),  # the opposite sign, and the interval includes zero
        ([68.0, 67.0, 68.0, 67.0], "contradicted"),
        ([69.9], "contradicted"),
        ([69.0, 70.5], "contradicted"),
        ([70.0, 70.0], "untested"),  # no sign at all
    ],
)
def test_the_verdict_on_a_difference(monkeypatch, ours, verdict):
    record = made_up(warp=ours, plain=[70.0] * 4)
    assert found(monkeypatch, record, row="warp", against="plain").verdict == verdict
    # The same told the other way round.
    assert found(monkeypatch, record, row="plain", against="warp", sign="-").verdict == verdict


def test_the_verdict_on_a_level_is_about_its_threshold(monkeypatch):
    record = made_up(warp=[82.0, 83.0, 82.0, 83.0])
    assert found(monkeypatch, record, row="warp", threshold=80.0).verdict == "supported"
    assert found(monkeypatch, record, row="warp", threshold=82.4).verdict == "indicative"
    assert found(monkeypatch, record, row="warp", threshold=85.0).verdict == "contradicted"
    assert found(monkeypatch, record, row="warp", threshold=85.0, sign="-").verdict == "supported"


def test_what_is_not_on_record_is_untested(monkeypatch):
    assert found(monkeypatch, None, row="warp", against="plain").verdict == "untested"
    record = made_up(warp=[82.0] * 4)
    assert found(monkeypatch, record, row="warp", against="plain").verdict == "untested"
    with pytest.raises(KeyError):
        found(monkeypatch, record, row="warp", measure="acuracy")


def test_a_difference_is_paired_over_the_seeds_of_both(monkeypatch):
    result = found(monkeypatch, made_up(warp=[72.0, 75.0, 90.0], plain=[70.0, 71.0]), row="warp", against="plain")
    assert result.ours == "+3.0"
    assert result.sizes == ("`small`, 2 seeds, 40 meta-steps",)


def test_scores_of_other_tasks_are_refused(monkeypatch):
    record = made_up(warp=[72.0, 75.0], plain=[70.0, 71.0])
    record.entries[0]["evaluation"]["accuracy"] = {"a": 1.0, "c": 2.0}
    with pytest.raises(WarpgradError, match="plain"):
        found(monkeypatch, record, row="warp", against="plain")


def test_measures_are_paths_into_a_run():
    (entry,) = made_up(warp=[4.0]).entries
    read = {
        "accuracy": {"a": -1.0, "b": 9.0},
        "accuracy > b": {"all": 9.0},
        "by_layer": {"0": 5.0, "1": -5.0},  # means over steps
        "by_layer > -1": {"0": 6.0, "1": -6.0},
        "surfaces": {"0": 4.0, "2": 5.0},
        "metrics > size": {"all": 4.0},
        "series > return > 20": {"all": 6.0},  # of the last tenth alone
        "series > return > 10": {"all": 4.0},
        "series > return > 1000": None,  # it did not get so far
    }
    assert {path: claims.read(entry, path, absolute=False) for path in read} == read
    assert claims.read(entry, "by_layer", absolute=True) == {"0": 5.0, "1": 5.0}


def test_a_claim_is_as_strong_as_its_weakest_check():
    assert claims.weakest(["supported", "indicative"]) == "indicative"
    assert claims.weakest(["supported", "untested", "indicative"]) == "untested"
    assert claims.weakest(["contradicted", "supported", "untested"]) == "contradicted"
    assert claims.weakest([]) == "untested"


def test_lists_and_letters_stand_for_every_combination():
    stated = {"row": "A, {N}", "against": ["B, {N}", "C"], "measure": "m", "for": [{"N": 1}, {"N": 2}], "sign": "+"}
    checks = claims.checks_of({"table": "t", "checks": [stated]})
    pairs = [("A, 1", "B, 1"), ("A, 1", "C"), ("A, 2", "B, 2"), ("A, 2", "C")]
    assert [(check.row, check.against) for check in checks] == pairs
    assert claims.words(stated) == "*A, N* − *B, N*, *C*: `m` above 0, for N = 1, 2"


def test_costs_are_judged_by_their_whole_range(monkeypatch):
    def ratio(low, high, threshold):
        content = {"peaks": [{"way": "ours", "ms": {"low": low, "median": 2.0, "high": high}}, {"way": "x", "ms": 1.0}]}
        monkeypatch.setattr(claims, "costs_of", lambda name: content)
        check = claims.Check("c.json", "peaks > way=ours > ms", "", "+", "peaks > way=x > ms", threshold=threshold)
        return claims.measured(check, 1)

    assert ratio(1.5, 2.5, 1.0).verdict == "supported"
    assert ratio(1.5, 2.5, 2.0).verdict == "indicative"
    assert ratio(1.5, 2.5, 3.0).verdict == "contradicted"
    assert ratio(1.5, 2.5, 1.0).ours == "2.0 [1.5 to 2.5]"


def test_the_page_shows_the_weakest_of_many_checks(monkeypatch):
    rows = {f"r{place}": [70.0 + place] * 4 for place in range(1, 6)}
    record = made_up(plain=[72.5] * 4, **rows)
    results = [found(monkeypatch, record, row=row, against="plain") for row in rows]
    assert claims.ours(results) == (
        "3 of 5 with the paper's sign; weakest −1.5 [−1.5 to −1.5] (*r1* − *plain*: `accuracy` above 0)"
    )

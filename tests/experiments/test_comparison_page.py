"""The page that compares methods: of a search, the best trial of each method comes first."""

from pathlib import Path

from tests.support.report_pages import Parsed, charts
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison_page import Measure, comparison_page, winners
from warpgrad.report import Run, Tiles

MEASURE = Measure("accuracy", "Accuracy", compared=True)


def trial(label: str, accuracy: float, split: str = "validation") -> Group:
    summary = {"experiment": "omniglot", "method": label, "preset": "small", "seed": 0}
    run = Run(Path(label), {"method": label}, summary, [])
    found = {"accuracy": {"Greek": accuracy, "Latin": accuracy}, "tested_at": [0, 1], "curve": [5.0, accuracy]}
    return Group(label, (run,), ({**found, "split": split},))


def test_the_best_trial_of_each_method_is_the_headline_of_a_search():
    trials = [
        trial("Leap, α 0.1", 60.0),
        trial("Leap, α 1", 50.0),
        trial("MAML, α 0.1", 30.0),
        trial("MAML, α 1", 70.0),
    ]
    (plot,) = winners(trials, [MEASURE], "held-out alphabets")
    assert [(row.label, row.estimate.mean) for row in plot.rows] == [("MAML, α 1", 70.0), ("Leap, α 0.1", 60.0)]
    assert "the best trial of each method" in plot.caption


def test_a_search_of_one_method_or_of_one_trial_each_has_no_such_plot():
    assert winners([trial("Leap, α 0.1", 60.0), trial("Leap, α 1", 50.0)], [MEASURE], "held-out alphabets") == []
    assert winners([trial("Leap", 60.0), trial("MAML", 50.0)], [MEASURE], "held-out alphabets") == []


def test_a_search_first_shows_the_curves_of_the_best_trials_and_holds_none_against_the_first():
    trials = {"Leap, α 0.1": 60.0, "Leap, α 1": 50.0, "MAML, α 0.1": 30.0, "MAML, α 1": 70.0}
    for split, shown in (("validation", ["Leap, α 0.1", "MAML, α 1"]), ("test", list(trials))):
        page = comparison_page(
            [trial(label, accuracy, split) for label, accuracy in trials.items()],
            "A search", "Trials", held_out="alphabets", measures=[MEASURE], caption="", notes=(),
        )  # fmt: skip
        found = Parsed(page.html())
        (curves,) = charts(found)
        assert [one["name"] for one in curves["series"] if one["shown"]] == shown
        assert ("minus Leap, α 0.1" in found.text) == (split == "test")


def test_the_first_row_and_the_three_best_of_the_others_have_tiles():
    rows = [trial(name, accuracy, "test") for name, accuracy in zip("abcdef", (10, 20, 50, 30, 15, 40), strict=True)]
    later = Measure("later", "Later", compared=True)
    for row in rows:
        row.evaluations[0]["later"] = row.evaluations[0]["accuracy"]
    for measures, expected in (
        ([MEASURE], ["a", "c", "d", "f"]),
        ([MEASURE, later], ["a: Accuracy", "c: Accuracy", "d: Accuracy", "f: Accuracy"]),
    ):
        page = comparison_page(rows, "t", "Rows", held_out="alphabets", measures=measures, caption="", notes=())
        (tiles,) = [block for section in page.sections for block in section.all() if isinstance(block, Tiles)]
        assert [tile.label for tile in tiles.tiles] == expected
        assert [tile.value for tile in tiles.tiles] == ["10.0 %", "50.0 %", "30.0 %", "40.0 %"]
        columns = [
            attributes["data-label"] for attributes in Parsed(page.html()).all("td") if "data-label" in attributes
        ]
        titles = ["Accuracy, minus a, points", "Later, minus a, points"]
        assert ["minus a, points" in columns, *(title in columns for title in titles)] == [
            len(measures) == 1, len(measures) == 2, len(measures) == 2,
        ]  # fmt: skip


def test_bands_are_spoken_of_only_where_there_are_any():
    row, other = trial("a", 10.0, "test"), trial("b", 20.0, "test")
    page = comparison_page([row, other], "t", "Rows", held_out="alphabets", measures=[MEASURE], caption="", notes=())
    assert "bands are" not in Parsed(page.html()).text
    page = comparison_page([four_seeds(row), four_seeds(other)], "t", "Rows", held_out="alphabets", measures=[MEASURE],
                           caption="", notes=())  # fmt: skip
    assert "bands are 95 % intervals" in Parsed(page.html()).text


def four_seeds(row: Group) -> Group:
    runs = [Run(run.path, run.config, {**run.summary, "seed": seed}, []) for run in row.runs for seed in range(4)]
    return Group(row.label, tuple(runs), row.evaluations * 4)

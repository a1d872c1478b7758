"""The page that compares methods: of a search, the best trial of each method comes first."""

from pathlib import Path

from tests.support.report_pages import Parsed, charts
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison_page import Measure, comparison_page, winners
from warpgrad.report import Run

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

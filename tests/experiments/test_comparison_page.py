"""The page that compares methods: of a search, the best trial of each method comes first."""

from pathlib import Path

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison_page import Measure, winners
from warpgrad.report import Run

MEASURE = Measure("accuracy", "Accuracy")


def trial(label: str, accuracy: float) -> Group:
    summary = {"experiment": "omniglot", "method": label, "preset": "small", "seed": 0}
    run = Run(Path(label), {"method": label}, summary, [])
    return Group(label, (run,), ({"accuracy": {"Greek": accuracy, "Latin": accuracy}, "split": "validation"},))


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

"""The page for runs of any experiment."""

import json
import math

import pytest

from tests.support.report_pages import Parsed, charts, png, write_run
from warpgrad.errors import WarpgradError
from warpgrad.report import mean_interval, read_run, run_page

__all__ = ["png"]


def test_the_overview_shows_results_curves_settings_and_how_to_repeat_each_number(tmp_path, png):
    runs = [
        read_run(write_run(tmp_path / f"{method}-{seed}", method, seed, figure=png))
        for method in ("Warp-Leap", "Leap")
        for seed in range(4)
    ]
    page = Parsed(run_page(runs).html())
    assert "omniglot, small preset" in page.text
    accuracy = mean_interval([[0.5 + seed / 10] for seed in range(4)])
    # Once for each method in the headline's plot, to be heard and to be seen, and once in the table.
    assert "accuracy of every method at the end" in page.text
    assert page.text.count(accuracy.cell(4).split("[")[1].rstrip("]")) == 6
    # One chart (the text metric "phase" is none), and one found figure for each run.
    assert len(charts(page)) == 1
    assert list(charts(page)[0]["series"][0]["runs"]) == ["0", "1", "2", "3"]
    assert len(page.all("img")) == len(runs)
    assert "Median and inter-quartile range of 4 runs per method" in page.text
    for run in runs:
        assert run.summary["command"] in page.text
    for fact in ("0123456789ab", "2.13.0", "hardware.cores", "1 min 15 s", "10 min 00 s", "rule.lr"):
        assert fact in page.text
    assert "indicative" not in page.text
    assert "1 setting shared by all runs" in page.text
    assert "2 settings that differ" in page.text


def test_several_experiments_stand_in_sections_of_their_own(tmp_path):
    runs = [
        read_run(write_run(tmp_path / "a", preset="paper")),
        read_run(write_run(tmp_path / "b", experiment="surfaces", command=["warpgrad", "run", "a b"])),
    ]
    page = Parsed(run_page(runs).html())
    sections = [attributes["aria-labelledby"] for attributes in page.all("section")]
    assert sections == ["omniglot-paper-preset", "surfaces-small-preset"]
    assert "warpgrad run 'a b'" in page.text
    assert page.text.count("indicative: fewer than 4 meta-seeds") == 2


def test_a_bare_summary_is_enough_and_what_is_missing_is_said(tmp_path):
    folder = write_run(tmp_path / "run", metrics=[])
    (folder / "summary.json").write_text(
        json.dumps({"experiment": "e", "method": "m", "preset": "p", "seed": 1, "metrics": {"loss": math.nan}})
    )
    page = Parsed(run_page([read_run(folder)]).html())
    assert charts(page) == []
    assert "not recorded" in page.text
    assert "the command was not recorded" in page.text
    assert "not finite in 1 of 1 run" in page.text


def test_runs_of_unequal_length_and_diverged_ones_are_drawn_and_said(tmp_path):
    long = [{"step": i, "loss": 10.0 ** (-i / 200)} for i in range(700)]
    short = [{"step": i, "loss": math.inf if i == 5 else 1.0} for i in range(650)]
    runs = [
        read_run(write_run(tmp_path / "a", metrics=long, seed=0)),
        read_run(write_run(tmp_path / "b", metrics=short, seed=1)),
        read_run(write_run(tmp_path / "c", method="Leap", metrics=long[:3], seed=1)),
    ]
    page = Parsed(run_page(runs).html())
    assert len(charts(page)) == 1
    assert "Median and whole range of 1 to 2 runs per method" in page.text
    assert "Warp-Leap: Only the 650 steps that all runs recorded." in page.text
    assert "Warp-Leap: 1 value not finite, left as gaps." in page.text
    assert "Warp-Leap: Each point is the mean of 3 steps." in page.text


def test_long_curves_are_averaged_down_and_wide_ones_get_a_logarithmic_axis(tmp_path):
    metrics = [{"step": i, "wide": 10.0 ** (-i / 200), "narrow": float(i % 3)} for i in range(700)]
    wide, narrow = charts(Parsed(run_page([read_run(write_run(tmp_path / "a", metrics=metrics))]).html()))
    assert (wide["logY"], narrow["logY"]) == (True, False)
    assert len(wide["x"][0]) == len(wide["series"][0]["y"]) == 234
    assert wide["x"][0][:2] == [1, 4]
    assert wide["x"][0][-1] == 699
    assert wide["series"][0]["y"][1] == pytest.approx(sum(10.0 ** (-i / 200) for i in (3, 4, 5)) / 3, rel=1e-4)
    assert set(narrow["series"][0]["y"][:-1]) == {1}


def test_what_was_learned_is_drawn_before_the_time_it_took(tmp_path):
    metrics = [{"step": i, "cpu_seconds": 1.0, "seconds": 2.0, "meta_loss": 3.0} for i in range(5)]
    page = Parsed(run_page([read_run(write_run(tmp_path / "a", metrics=metrics))]).html())
    assert [chart["title"] for chart in charts(page)] == ["meta_loss", "cpu_seconds", "seconds"]


def test_many_runs_of_one_seed_are_still_one_seed(tmp_path):
    runs = [read_run(write_run(tmp_path / str(i), seed=7)) for i in range(5)]
    assert "indicative: fewer than 4 meta-seeds" in Parsed(run_page(runs).html()).text


def test_a_changed_source_tree_is_never_hidden(tmp_path):
    clean = read_run(write_run(tmp_path / "a"))
    changed = read_run(write_run(tmp_path / "b", commit="0123456789abcdef+changes"))
    assert "differs from the commit" not in Parsed(run_page([clean]).html()).text
    text = Parsed(run_page([clean, changed]).html()).text
    assert "0123456789ab+changes" in text
    assert "1 run made from source that differs from the commit." in text


def test_a_damaged_figure_is_named(tmp_path):
    run = read_run(write_run(tmp_path / "run", figure=b"nothing"))
    with pytest.raises(WarpgradError, match=r"surface\.png: a figure must be the bytes of a PNG or SVG"):
        run_page([run])


def test_no_runs_are_no_report():
    with pytest.raises(WarpgradError, match="at least one run"):
        run_page([])


def test_two_own_runs_are_compared_first_by_what_was_scored_on_held_out_tasks(tmp_path):
    """And one run alone, which there is nothing to compare with, has no such plot."""
    runs = []
    for name, value in (("warped", 0.05), ("plain", 0.06)):
        folder = write_run(tmp_path / name, method=name, seed=0)
        summary = json.loads((folder / "summary.json").read_text())
        summary["metrics"] = {"meta_loss": 1.0, "test/loss": value}
        (folder / "summary.json").write_text(json.dumps(summary))
        runs.append(read_run(folder))
    text = Parsed(run_page(runs).html()).text
    assert "test/loss of every method at the end (lower is better)" in text
    assert text.index("test/loss of every method") < text.index("Wall time, all runs")
    assert text.index("test/loss", text.index("Final metrics")) < text.index("meta_loss")
    assert "of every method at the end" not in Parsed(run_page(runs[:1]).html()).text


def test_one_run_begins_with_its_scores_and_not_with_a_count_of_runs(tmp_path):
    page = Parsed(run_page([read_run(write_run(tmp_path / "run"))]).html())
    assert "Meta-seeds" not in page.text
    assert page.text.index("accuracy") < page.text.index("Wall time")
    # Nor with words about several runs.
    assert "mean over meta-seeds" not in page.text
    assert "per method" not in page.text


def test_the_page_of_one_own_run_without_a_preset_has_the_name_of_its_folder(tmp_path):
    folders = [write_run(tmp_path / name, preset=None) for name in ("sine", "cosine")]
    titles = [run_page([read_run(folder) for folder in own]).title for own in (folders[:1], folders)]
    assert titles == ["sine", "omniglot"]


@pytest.mark.parametrize(
    ("each", "unit", "last"), [(1.0, "seconds", 3.0), (60.0, "minutes", 3.0), (7200.0, "hours", 6.0)]
)
def test_processor_time_is_in_a_unit_that_suits_it(tmp_path, each, unit, last):
    metrics = [{"step": i, "validation/loss": 1.0 - i / 10, "cpu_seconds": each} for i in range(3)]
    _, timed, _ = charts(Parsed(run_page([read_run(write_run(tmp_path / "run", metrics=metrics))]).html()))
    assert (timed["title"], timed["xLabel"]) == ("validation/loss against time", f"processor {unit}")
    assert timed["x"][0][-1] == last


def test_a_remark_about_many_curves_counts_them_instead_of_naming_them(tmp_path):
    runs = [
        read_run(write_run(tmp_path / name, method=name, metrics=[{"step": i, "loss": 1.0} for i in range(size)]))
        for name, size in zip("abcde", (700, 700, 700, 700, 3), strict=True)
    ]
    assert "4 of 5 curves: Each point is the mean of 3 steps." in Parsed(run_page(runs).html()).text

"""Tables and images on a page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.support.report_pages import SVG, Parsed, png
from warpgrad.errors import WarpgradError
from warpgrad.report import (
    Column,
    Figure,
    Forest,
    ForestRow,
    Page,
    Section,
    Table,
    Value,
    mean_interval,
    paired_difference,
)

__all__ = ["png"]


def cells(table):
    html = Page("t").add(Section("s").add(table)).html()
    return html[html.index("<tbody>") : html.index("</tbody>")].split("</td>")[:-1]


def test_the_best_value_of_a_column_or_row_is_emphasised_as_printed():
    columns = ["Method", Column("accuracy", best="highest"), Column("loss", best="lowest"), "steps"]
    rows = [
        ["a", Value(80.04, digits=1), Value(0.2), Value(9.0)],
        ["b", Value(79.96, digits=1), Value(0.1), Value(10.0)],
        ["c", Value(70.0, digits=1), Value(None, paper=0.05), None],
    ]
    winners = ["<strong" in cell for cell in cells(Table(columns, rows))]
    assert winners == [True, False, False, True, True, False, False, False, False]
    by_row = Table(["tasks", "a", "b"], [["1", Value(1.0), Value(2.0)], ["3", Value(5.0), None]], best_in_row="highest")
    assert ["<strong" in cell for cell in cells(by_row)] == [False, True, False, False]


def test_a_cell_shows_ours_its_interval_the_papers_value_and_the_badge():
    random = np.random.default_rng(0)
    few, many = random.normal(80, 1, size=(3, 5)), random.normal(80, 1, size=(6, 5))
    estimates = [mean_interval(few), mean_interval(many), paired_difference(many + 1, many[::-1])]
    table = Table(
        ["Method", "a", "b", "c"],
        [["row", *(Value.of(e, paper=83.8, digits=1) for e in estimates)]],
        "Accuracy",
    )
    page = Parsed(Page("t").add(Section("s").add(table)).html())
    for estimate in estimates:
        interval = estimate.cell(1).split("[")[1].split("]")[0]
        # Of three meta-seeds there is none: it could reach beyond what can be measured.
        assert (interval in page.text) == (not estimate.indicative)
    assert page.text.count("paper 83.8") == 2
    assert page.text.count("paper +83.8") == 1
    assert sum(attributes.get("class") == "badge" for _, attributes in page.tags) == 1
    assert "small: 95 % interval, clustered by meta-seed · paper: the published figure" in page.text
    assert "indicative: fewer than 4 meta-seeds" in page.text


def test_a_table_of_nothing_but_indicative_values_says_so_once():
    value = Value.of(mean_interval(np.random.default_rng(0).normal(80, 1, size=(2, 5))))
    page = Parsed(Page("t").add(Section("s").add(Table(["a", "b", "c"], [["x", value, None], ["y", value, 3]]))).html())
    assert not any(attributes.get("class") == "badge" for _, attributes in page.tags)
    assert "all values are indicative: fewer than 4 meta-seeds" in page.text


def test_the_line_below_a_table_explains_only_what_is_in_it():
    page = Parsed(Page("t").add(Section("s").add(Table(["a", "b"], [["x", 3]]))).html())
    assert not any(attributes.get("class") == "legend" for _, attributes in page.tags)


def test_the_numbers_of_a_forest_plot_have_equally_many_decimals():
    random = np.random.default_rng(0)
    near, far = (mean_interval(centre + random.normal(0, 0.001, size=(6, 5))) for centre in (0.01, 2.0))
    page = Parsed(Page("t").add(Section("s").add(Forest([ForestRow("near", near), ForestRow("far", far)], "c"))).html())
    assert f"{near.mean:.3f}" in page.text
    assert f"{near.mean:.5f}" not in page.text
    assert f"{far.mean:.3f}" in page.text


def test_the_line_below_a_forest_plot_explains_the_marks_of_few_seeds():
    def legend(*seeds):
        estimates = [mean_interval({seed: {"task": 1.0 + seed} for seed in range(each)}) for each in seeds]
        return Forest([ForestRow(f"{place}", own) for place, own in enumerate(estimates)], "c").legend()

    assert legend(1, 1) == "circles: one meta-seed each; indicative only"
    assert "small dots: each meta-seed, circles: their mean, where there are fewer than 4" in legend(1, 3)
    assert "indicative" not in legend(4)


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(WarpgradError, match="table 'T' has 1 cells for 2 columns"):
        Table(["a", "b"], [["x"]], "T")


# Images


def test_images_are_embedded_byte_by_byte_at_their_own_size(png):
    page = Parsed(Page("t").add(Section("s").add(Figure(png, "A line."), Figure(SVG, "A box."))).html())
    first, second = page.all("img")
    assert base64.b64decode(first["src"].removeprefix("data:image/png;base64,")) == png
    assert base64.b64decode(second["src"].removeprefix("data:image/svg+xml;base64,")) == SVG
    pixels = Image.open(io.BytesIO(png)).size
    assert (int(first["width"]), int(first["height"])) == (pixels[0] // 2, pixels[1] // 2) == (691, 384)


def test_an_image_without_a_stated_resolution_is_shown_pixel_by_pixel():
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10)).save(buffer, "png")
    (image,) = Parsed(Page("t").add(Section("s").add(Figure(buffer.getvalue(), "x"))).html()).all("img")
    assert (image["width"], image["height"]) == ("20", "10")


def test_what_is_no_image_or_says_nothing_is_refused(png):
    with pytest.raises(WarpgradError, match="PNG or SVG"):
        Figure(b"GIF89a...", "x")
    with pytest.raises(WarpgradError, match="alt="):
        Figure(png, "  ")

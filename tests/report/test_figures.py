"""Figures that look the same everywhere."""

import io
import itertools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from PIL import Image

from tests.support.report_pages import line_chart, linear
from warpgrad.errors import WarpgradError
from warpgrad.report import Chart, Line, Mark, Panel, Reference, Series, appearances, mean_interval, panels
from warpgrad.report.figures import canvas, house_style, save_png
from warpgrad.report.looks import DARK_PALETTE, PALETTE


def test_a_chart_for_a_document_is_a_png_at_twice_the_resolution_and_repeatable():
    image = line_chart().image(size=(4.0, 3.0))
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert Image.open(io.BytesIO(image)).size == (2 * 96 * 4, 2 * 96 * 3)
    assert image == line_chart().image(size=(4.0, 3.0))


def test_a_picture_is_drawn_for_light_and_for_dark_pages():
    figure = panels([[Panel([Line([[0, 0], [1, 1]], PALETTE[7], width=4)])]], size=(3.0, 2.0), alt="a line")
    light, dark = (np.asarray(Image.open(io.BytesIO(image)).convert("L")) for image in (figure.image, figure.dark))
    assert light[0, 0] == 255
    assert dark[0, 0] < 40
    # The line in ink is dark on white, and light on black.
    assert light.min() < 60
    assert dark.max() > 200


def test_drawing_leaves_no_trace_in_matplotlib():
    # Settings of the caller's own, none of them the house's: a leak from any earlier figure would show as well.
    with mpl.rc_context({"font.size": 17.0, "axes.grid": False, "axes.spines.top": True, "legend.frameon": True}):
        before = dict(mpl.rcParams)
        line_chart(references=[Reference("paper", 1.5)], log_y=True).image()
        with house_style():
            save_png(canvas(2, 2))
        assert dict(mpl.rcParams) == before
    assert Gcf.get_all_fig_managers() == []


def colour_count(image, colour):
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).astype(int)
    return int((np.abs(pixels - [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).max(axis=2) <= 2).sum())


def test_a_curve_its_band_and_its_reference_have_the_colour_of_their_method():
    x = np.arange(20.0)
    warp, leap = appearances(["Warp-Leap", "Leap"]).values()
    alone = Chart([Series.line("Leap", x, x)], x_label="", y_label="")
    assert colour_count(alone.image(), leap.colour) > 500
    assert colour_count(alone.image(), warp.colour) == 0
    referred = Chart([Series.line("Leap", x, x)], x_label="", y_label="", references=[Reference("p", 9.0, "Warp-Leap")])
    assert colour_count(referred.image(), warp.colour) > 500
    marked = Chart([Series.line("Leap", x, x)], x_label="", y_label="", marks=[Mark("K = $9", 9.0)])
    assert colour_count(marked.image(), "#59616b") > colour_count(alone.image(), "#59616b") + 200
    banded = Chart([Series.quartiles("Leap", x, [x, x + 3])], x_label="", y_label="")
    wash = "#" + "".join(f"{round(0.16 * int(leap.colour[i : i + 2], 16) + 0.84 * 255):02x}" for i in (1, 3, 5))
    assert colour_count(banded.image(), wash) > 20 * colour_count(alone.image(), wash) + 5000


def test_the_same_method_looks_the_same_whatever_else_is_drawn():
    paper = ["Warp-Leap", "Leap", "Reptile", "Finetuning", "MAML", "KFAC", "SGD"]
    looks = appearances(paper)
    assert len({look.colour for look in looks.values()}) == 7
    assert appearances(paper[::-1]) == looks
    assert all(appearances([name])[name] == look for name, look in looks.items())
    assert appearances(["warp_leap"])["warp_leap"] == looks["Warp-Leap"]
    assert appearances(["mine"]) == {"mine": appearances(["Leap", "mine"])["mine"]}
    crowd = appearances([f"method {i}" for i in range(28)] + ["Warp-Leap", "Warp-MAML", "Leap", "SGD"])
    assert len(set(crowd.values())) == 32


def test_what_pictures_draw_keeps_its_colour_beside_any_other_method():
    beside = appearances(["Leap", "SGD", "Warp-Leap", "WarpGrad", "WarpGrad, longer"])
    assert all(beside[name] == appearances([name])[name] for name in ("WarpGrad", "SGD", "Leap"))
    assert len({look.colour for look in beside.values()}) == 5


def test_methods_keep_their_colour_whatever_follows_their_name():
    assert appearances(["Leap, 25 tasks"])["Leap, 25 tasks"] == appearances(["Leap"])["Leap"]
    trials = [f"{method}, α = {size}" for method in ("MAML", "CAVIA") for size in range(6)]
    looks = appearances(trials)
    assert {looks[name].colour for name in trials[:6]} == {appearances(["MAML"])["MAML"].colour}
    assert {looks[name].colour for name in trials[6:]} == {appearances(["CAVIA"])["CAVIA"].colour}


def test_methods_keep_their_colour_beside_curves_that_are_no_methods():
    known = [f"{name}, small" for name in ("warp-leap", "leap", "reptile", "maml", "finetuning", "sgd")]
    layers = ["before the warp", "after the warp", *(f"after warp {layer}" for layer in range(1, 5))]
    looks = appearances([f"{layer}, batch 20" for layer in layers] + known)
    assert all(looks[name] == appearances([name])[name] for name in known)


# Full dichromacy in linear RGB, after Machado, Oliveira and Fernandes (2009).
VISION = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("palette", [PALETTE, DARK_PALETTE])
@pytest.mark.parametrize("vision", VISION)
def test_the_palette_stays_apart_for_every_kind_of_colour_vision(vision, palette):
    """Distances in Oklab, a space of even steps for the eye, where 0.02 is just noticeable side by side."""
    to_cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    to_lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
              [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    seen = []
    for colour in palette:
        channels = linear(np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255)
        seen.append(to_lab @ np.cbrt(to_cones @ np.clip(VISION[vision] @ channels, 0, 1)))
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.07


def test_bands_are_what_they_are_called():
    samples = np.random.default_rng(1).normal(size=(5, 3))
    quartiles = Series.quartiles("a", [0, 1, 2], samples)
    ordered = np.sort(samples, axis=0)
    assert np.array_equal(quartiles.centre, ordered[2])
    assert np.allclose(quartiles.low, ordered[1], atol=1e-15)
    assert np.allclose(quartiles.high, ordered[3], atol=1e-15)
    few = Series.quartiles("a", [0, 1, 2], samples[:3])
    assert np.array_equal(few.low, samples[:3].min(axis=0))
    assert np.array_equal(few.high, samples[:3].max(axis=0))
    assert Series.quartiles("a", [0, 1, 2], samples[:1]).low is None
    mean = Series.mean("a", [0, 1, 2], samples)
    for point in range(3):
        estimate = mean_interval(samples[:, [point]])
        assert (mean.low[point], mean.high[point]) == (estimate.interval.low, estimate.interval.high)
    # Two or three seeds make no claim, and so no band.
    assert Series.mean("a", [0, 1, 2], samples[:4]).high is not None
    assert Series.mean("a", [0, 1, 2], samples[:3]).high is None
    assert Series.mean("a", [0, 1, 2], samples[:1]).high is None


def test_figures_survive_gaps_dollars_and_crowds():
    x = np.arange(30.0)
    gaps = Series.quartiles("costs $5", x, [np.where(x == 7, np.nan, x + 1), x + 2])
    crowd = [Series.line(f"a method with quite a long name, {i}", x, x + i) for i in range(1, 15)]
    image = Chart([gaps, *crowd], x_label="$x", y_label="y", title="$", log_x=False, log_y=True).image(size=(4.3, 3.1))
    assert Image.open(io.BytesIO(image)).size[1] > 2 * 96 * 3.1


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Chart([], x_label="", y_label=""), "at least one series"),
        (lambda: Chart([Series.line("a", [1], [1])] * 2, x_label="", y_label=""), "share a name"),
        (lambda: Chart([Series.line("a", [0], [1])], x_label="", y_label="", log_x=True), "'a' has x values"),
        (lambda: Chart([Series.line("a", [1], [0])], x_label="", y_label="", log_y=True), "'a' has y values"),
        (lambda: Series.line("a", [1, 2], [1]), "one value for each x"),
        (lambda: Series.quartiles("a", [1, 2], [1, 2]), r"samples \[runs, points\]"),
    ],
)
def test_impossible_figures_are_refused(make, match):
    with pytest.raises(WarpgradError, match=match):
        make()


def test_a_picture_has_a_palette_and_is_smaller_for_it():
    x, y = np.meshgrid(np.linspace(-1, 1, 60), np.linspace(-1, 1, 60))
    panel = Panel([], contours=(x, y, np.sin(3 * x) * np.cos(2 * y)), plane=True)
    image = panels([[panel]], size=(3.0, 2.0), alt="a map").image
    assert Image.open(io.BytesIO(image)).mode == "P"
    with house_style():
        figure = canvas(3.0, 2.0)
        figure.add_subplot().contourf(x, y, np.sin(3 * x) * np.cos(2 * y), levels=24, cmap="Blues_r")
        whole, reduced = save_png(figure), save_png(figure, colours=256)
    assert len(reduced) < 0.6 * len(whole)
    first, second = (np.asarray(Image.open(io.BytesIO(one)).convert("RGB"), int) for one in (whole, reduced))
    assert np.abs(first - second).mean() < 2


def test_trials_of_one_method_share_its_colour_however_many_methods_there_are():
    methods = [f"method {i}" for i in range(9)]
    looks = appearances([f"{method}, trial {i}" for method in methods for i in range(7)])
    for method in methods:
        assert len({look.colour for name, look in looks.items() if name.startswith(f"{method},")}) == 1

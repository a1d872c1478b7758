"""The report: safe text, a page that stands alone, figures that look the same everywhere, runs read with care."""

import base64
import hashlib
import io
import itertools
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from PIL import Image

from warpgrad.errors import WarpgradError
from warpgrad.report import (
    Code,
    Collapsible,
    Column,
    Figure,
    Gallery,
    Heading,
    Items,
    KeyValues,
    Note,
    Page,
    Paragraph,
    Reference,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    Value,
    appearances,
    canvas,
    curves,
    house_style,
    load_run,
    mean_interval,
    paired_difference,
    run_page,
    save,
)
from warpgrad.report.figures import PALETTE

HOSTILE = """<script>alert("1")</script><img src=x onerror='alert(2)'> & "quoted" 'too' </style></script>-->"""

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"><rect width="4" height="3" fill="red"/></svg>'


class Parsed(HTMLParser):
    """A page taken apart; refuses tags that do not nest."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.raw = {"script": [], "style": []}
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute"
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.raw[self.open[-1]] if self.open and self.open[-1] in self.raw else self.texts).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return "".join(self.texts)


def line_figure(**options):
    return curves([Series.line("Warp-Leap", [0, 1, 2], [3.0, 2.0, 1.0])], x_label="step", y_label="loss", **options)


@pytest.fixture(scope="module")
def png():
    return line_figure()


def full_page(png, text):
    """A page with every block there is, and `text` in every place that takes text."""
    value = Value(1.5, 1.0, 2.0, paper=text, indicative=True, method=text)
    blocks = [
        Heading(text),
        Paragraph(text),
        Items([text, text]),
        Note(text),
        Note(text, "warning"),
        Code(text, text),
        Code(text),
        Tiles([Tile(text, text, text), Tile(text, text)]),
        Table([text, Column(text, text, best="lowest")], [[text, value], [text, text], [text, None]], text),
        Figure(png, text, text),
        Gallery([Figure(SVG, text, text), Figure(png, text)]),
        Collapsible(text, [KeyValues({text: text, "inner": {text: [1, 2]}}), KeyValues({})]),
    ]
    return Page(text, text).add(Section(text).add(*blocks), Section(text), Section("Content"))


# Text


def test_hostile_text_is_shown_and_never_obeyed(png):
    plain, hostile = (Parsed(full_page(png, text).html()) for text in ("word", HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert [set(attributes) for _, attributes in hostile.tags] == [set(attributes) for _, attributes in plain.tags]
    assert hostile.text.count(HOSTILE) == plain.text.count("word")
    assert {image["alt"] for image in hostile.all("img")} == {HOSTILE}


def test_prose_sets_code_and_strong_and_nothing_else():
    page = Parsed(Page("t").add(Section("s").add(Paragraph("a `x < y` and **b & c** and * and `` and ** _d_"))).html())
    assert [tag for tag, _ in page.tags if tag in ("code", "strong", "em")] == ["code", "strong"]
    assert "a x < y and b & c and * and `` and ** _d_" in page.text


# The page as a whole


def test_the_page_asks_nobody_for_anything(png):
    page = Parsed(full_page(png, "see https://example.org/a.css").html())
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "base", "video", "audio", "source"}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") or name in ("style", "srcset") for name in attributes), tag
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    assert page.all("script") == [{}]
    for code in page.raw["script"] + page.raw["style"]:
        assert "://" not in code
        assert "@import" not in code
        assert "url(" not in code


def test_the_policy_names_exactly_the_script_and_style_of_the_page(png):
    page = Parsed(full_page(png, "x").html())
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256("".join(page.raw[kind]).encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_every_entry_of_the_contents_leads_to_its_own_heading(png):
    page = Parsed(full_page(png, "Same title").html())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"].removeprefix("#") for a in page.all("a")]
    assert set(targets) <= set(ids)
    headings = [attributes["id"] for tag, attributes in page.tags if tag in ("h2", "h3")]
    assert targets[1:] == headings == ["same-title", "same-title-2", "same-title-3", "content-2"]


def test_the_page_is_accessible_in_its_bones(png):
    page = Parsed(full_page(png, "x").html())
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("nav")) == 1
    assert all(image["alt"] for image in page.all("img"))
    assert all(header["scope"] in ("row", "col") for header in page.all("th"))


def test_the_same_blocks_give_the_same_bytes(png):
    assert full_page(png, "x").html() == full_page(png, "x").html()


def _luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return _linear(channels) @ [0.2126, 0.7152, 0.0722]


def _linear(channels):
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def test_text_has_contrast_in_light_and_dark():
    """The colour pairs of the style sheet reach 4.5 to 1, what accessibility guidelines ask of body text."""
    style = "".join(Parsed(Page("t").html()).raw["style"])
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    for theme in (light, dark):
        block = theme[theme.index(":root {") :].split("}", 1)[0]
        colours = dict(line.strip(" ;").split(": ") for line in block.splitlines() if "--" in line and "#" in line)
        for ink in ("ink", "soft", "accent"):
            for ground in ("paper", "raised", "sunk", "accent-wash"):
                pair = sorted(_luminance(colours[f"--{name}"]) for name in (ink, ground))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (ink, ground)
        pair = sorted(_luminance(colours[name]) for name in ("--warn", "--warn-wash"))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5


# Writing


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    place = tmp_path / "deep" / "report.html"
    assert Page("Old").write(place) == place
    old = place.read_bytes()
    assert old == Page("Old").html().encode()

    def refuse(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(WarpgradError, match=r"report\.html: No space left on device"):
        Page("New").write(place)
    assert place.read_bytes() == old
    assert [file.name for file in place.parent.iterdir()] == ["report.html"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WarpgradError, match=r"cannot write .*report\.html: .*"):
        Page("t").write(tmp_path / "file" / "report.html")


# Tables


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
        assert interval in page.text
    assert page.text.count("paper 83.8") == 2
    assert page.text.count("paper +83.8") == 1
    assert sum(attributes.get("class") == "badge" for _, attributes in page.tags) == 1
    assert "small: 95 % interval, clustered by meta-seed · paper: the published figure" in page.text
    assert "indicative: fewer than 4 meta-seeds" in page.text


def test_the_line_below_a_table_explains_only_what_is_in_it():
    page = Parsed(Page("t").add(Section("s").add(Table(["a", "b"], [["x", 3]]))).html())
    assert not any(attributes.get("class") == "legend" for _, attributes in page.tags)


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


# Figures


def test_curves_are_png_at_twice_the_resolution_and_repeatable(tmp_path):
    image = line_figure(size=(4.0, 3.0), path=tmp_path / "figures" / "line.png")
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "figures" / "line.png").read_bytes() == image
    assert Image.open(io.BytesIO(image)).size == (2 * 96 * 4, 2 * 96 * 3)
    assert image == line_figure(size=(4.0, 3.0))


def test_drawing_leaves_no_trace_in_matplotlib():
    # Settings of the caller's own, none of them the house's: a leak from any earlier figure would show as well.
    with mpl.rc_context({"font.size": 17.0, "axes.grid": False, "axes.spines.top": True, "legend.frameon": True}):
        before = dict(mpl.rcParams)
        line_figure(references=[Reference("paper", 1.5)], log_y=True)
        with house_style():
            save(canvas(2, 2))
        assert dict(mpl.rcParams) == before
    assert Gcf.get_all_fig_managers() == []


def colour_count(image, colour):
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).astype(int)
    return int((np.abs(pixels - [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).max(axis=2) <= 2).sum())


def test_a_curve_its_band_and_its_reference_have_the_colour_of_their_method():
    x = np.arange(20.0)
    warp, leap = appearances(["Warp-Leap", "Leap"]).values()
    alone = curves([Series.line("Leap", x, x)], x_label="", y_label="")
    assert colour_count(alone, leap.colour) > 500
    assert colour_count(alone, warp.colour) == 0
    referred = curves(
        [Series.line("Leap", x, x)], x_label="", y_label="", references=[Reference("p", 9.0, "Warp-Leap")]
    )
    assert colour_count(referred, warp.colour) > 500
    banded = curves([Series.quartiles("Leap", x, [x, x + 3])], x_label="", y_label="")
    wash = "#" + "".join(f"{round(0.16 * int(leap.colour[i : i + 2], 16) + 0.84 * 255):02x}" for i in (1, 3, 5))
    assert colour_count(banded, wash) > 20 * colour_count(alone, wash) + 5000


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


# Full dichromacy in linear RGB, after Machado, Oliveira and Fernandes (2009).
VISION = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("vision", VISION)
def test_the_palette_stays_apart_for_every_kind_of_colour_vision(vision):
    """Distances in Oklab, a space of even steps for the eye, where 0.02 is just noticeable side by side."""
    to_cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    to_lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
              [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    seen = []
    for colour in PALETTE:
        channels = _linear(np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255)
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
    image = curves([gaps, *crowd], x_label="$x", y_label="y", title="$", log_x=False, log_y=True, size=(4.3, 3.1))
    assert Image.open(io.BytesIO(image)).size[1] > 2 * 96 * 3.1


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: curves([], x_label="", y_label=""), "at least one series"),
        (lambda: curves([Series.line("a", [1], [1])] * 2, x_label="", y_label=""), "share a name"),
        (lambda: curves([Series.line("a", [0], [1])], x_label="", y_label="", log_x=True), "'a' has x values"),
        (lambda: curves([Series.line("a", [1], [0])], x_label="", y_label="", log_y=True), "'a' has y values"),
        (lambda: Series.line("a", [1, 2], [1]), "one value for each x"),
        (lambda: Series.quartiles("a", [1, 2], [1, 2]), r"samples \[runs, points\]"),
    ],
)
def test_impossible_figures_are_refused(make, match):
    with pytest.raises(WarpgradError, match=match):
        make()


# Run directories


def write_run(folder, method="Warp-Leap", seed=0, metrics=None, figure=None, **summary):
    folder.mkdir(parents=True)
    metrics = (
        [{"step": i, "meta_loss": 3.0 - i + seed, "phase": "train"} for i in range(3)] if metrics is None else metrics
    )
    (folder / "config.json").write_text(json.dumps({"seed": seed, "rule": {"lr": 0.1}, "method": method}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    known = {
        "experiment": "omniglot",
        "method": method,
        "preset": "small",
        "seed": seed,
        "steps": 3,
        "metrics": {"accuracy": 0.5 + seed / 10, "nested": {"loss": 2.0}, "done": True},
        "wall_seconds": 75.0,
        "versions": {"torch": "2.13.0"},
        "commit": "0123456789abcdef",
        "hardware": {"cores": 2},
        "command": f"warpgrad run omniglot --method {method} --seed {seed}",
    }
    (folder / "summary.json").write_text(json.dumps(known | summary))
    if figure is not None:
        (folder / "figures").mkdir()
        (folder / "figures" / "surface.png").write_bytes(figure)
        (folder / "figures" / "notes.txt").write_text("not a figure")
    return folder


def test_a_run_is_read_as_it_was_written(tmp_path, png):
    run = load_run(write_run(tmp_path / "run", figure=png))
    assert run.config == {"seed": 0, "rule": {"lr": 0.1}, "method": "Warp-Leap"}
    assert [row["meta_loss"] for row in run.metrics] == [3.0, 2.0, 1.0]
    assert (run.experiment, run.method, run.preset, run.seed, run.notes) == ("omniglot", "Warp-Leap", "small", 0, ())
    assert [file.name for file in run.figures] == ["surface.png"]


@pytest.mark.parametrize("tail", [b'{"step": 3, "meta', b'{"step": 3, "name": "\xc3', b"{", b"17"])
def test_a_cut_off_last_line_is_left_out_and_said(tmp_path, tail):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    run = load_run(folder)
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert len(run.notes) == 1
    assert "cut off" in run.notes[0]
    assert "cut off" in Parsed(run_page([run]).html()).text


def test_a_whole_last_line_without_its_newline_counts(tmp_path):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3}')
    run = load_run(folder)
    assert run.metrics[-1] == {"step": 3}
    assert run.notes == ()


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("config.json", None, r"config\.json is missing: .*--fresh"),
        ("summary.json", None, r"summary\.json is missing: the run is not finished; give its command again"),
        ("metrics.jsonl", None, r"metrics\.jsonl is missing: .*--fresh"),
        ("config.json", b"{", r"config\.json is not valid JSON .*restore it"),
        ("config.json", b"\xff\xfe\xfa", r"config\.json is not valid JSON"),
        ("config.json", b"[1]", r"config\.json holds a list"),
        ("summary.json", b'{"method": "a", "seed": 1}', r"summary\.json does not say experiment, preset"),
        (
            "summary.json",
            b'{"experiment": "e", "method": "a", "preset": "p", "seed": 1, "metrics": 3}',
            r"summary\.json has metrics that are not named numbers",
        ),
        (
            "metrics.jsonl",
            b'{"step": 0}\n{"ste\n{"step": 2}\n',
            r"metrics\.jsonl, line 2 is damaged .*remove that line",
        ),
        (
            "metrics.jsonl",
            b'{"step": 0}\n{"step": "x"}\n',
            r'line 2 is damaged \(no object with a number as its "step"',
        ),
    ],
)
def test_missing_and_damaged_files_are_named_with_a_remedy(tmp_path, file, content, match):
    folder = write_run(tmp_path / "run")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(WarpgradError, match=match):
        load_run(folder)


def test_what_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(WarpgradError, match="nowhere is not a run directory; give the folder"):
        load_run(tmp_path / "nowhere")


# The overview


def test_the_overview_shows_results_curves_settings_and_how_to_repeat_each_number(tmp_path, png):
    runs = [
        load_run(write_run(tmp_path / f"{method}-{seed}", method, seed, figure=png))
        for method in ("Warp-Leap", "Leap")
        for seed in range(4)
    ]
    page = Parsed(run_page(runs).html())
    assert "omniglot, small preset" in page.text
    accuracy = mean_interval([[0.5 + seed / 10] for seed in range(4)])
    assert page.text.count(accuracy.cell(4).split("[")[1].rstrip("]")) == 2
    # One curve figure (the text metric "phase" is none), and one found figure for each run.
    assert len(page.all("img")) == 1 + len(runs)
    assert "median and inter-quartile range of 4 runs per method" in page.text
    for run in runs:
        assert run.summary["command"] in page.text
    for fact in ("0123456789ab", "2.13.0", "hardware.cores", "1 min 15 s", "10 min 00 s", "rule.lr"):
        assert fact in page.text
    assert "indicative" not in page.text
    assert "1 setting of all runs" in page.text
    assert "2 settings that differ" in page.text


def test_several_experiments_stand_in_sections_of_their_own(tmp_path):
    runs = [
        load_run(write_run(tmp_path / "a", preset="paper")),
        load_run(write_run(tmp_path / "b", experiment="surfaces", command=["warpgrad", "run", "a b"])),
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
    page = Parsed(run_page([load_run(folder)]).html())
    assert page.all("img") == []
    assert "not recorded" in page.text
    assert "the command was not recorded" in page.text
    assert "not finite in 1 of 1 run" in page.text


def test_runs_of_unequal_length_and_diverged_ones_are_drawn_and_said(tmp_path):
    long = [{"step": i, "loss": 10.0 ** (-i / 200)} for i in range(700)]
    short = [{"step": i, "loss": math.inf if i == 5 else 1.0} for i in range(650)]
    runs = [
        load_run(write_run(tmp_path / "a", metrics=long, seed=0)),
        load_run(write_run(tmp_path / "b", metrics=short, seed=1)),
        load_run(write_run(tmp_path / "c", method="Leap", metrics=long[:3], seed=1)),
    ]
    page = Parsed(run_page(runs).html())
    assert len(page.all("img")) == 1
    assert "median and whole range of 1 to 2 runs per method" in page.text
    assert "Warp-Leap: Only the 650 steps that all runs recorded." in page.text
    assert "Warp-Leap: 1 value not finite, left as gaps." in page.text
    assert "Warp-Leap: Each point is the mean of 3 steps." in page.text


def test_long_curves_are_averaged_down_and_wide_ones_get_a_logarithmic_axis(tmp_path, png, monkeypatch):
    drawn = {}

    def record(series, **options):
        drawn[options["title"]] = (*series, options["log_y"])
        return png

    monkeypatch.setattr("warpgrad.report.metric_curves.curves", record)
    metrics = [{"step": i, "wide": 10.0 ** (-i / 200), "narrow": float(i % 3)} for i in range(700)]
    run_page([load_run(write_run(tmp_path / "a", metrics=metrics))])
    wide, logarithmic = drawn["wide"]
    narrow, linear = drawn["narrow"]
    assert (logarithmic, linear) == (True, False)
    assert len(wide.x) == len(wide.centre) == 234
    assert wide.x[:2].tolist() == [1.0, 4.0]
    assert wide.x[-1] == 699.0
    assert wide.centre[1] == pytest.approx(sum(10.0 ** (-i / 200) for i in (3, 4, 5)) / 3, rel=1e-14)
    assert set(narrow.centre[:-1]) == {1.0}


def test_many_runs_of_one_seed_are_still_one_seed(tmp_path):
    runs = [load_run(write_run(tmp_path / str(i), seed=7)) for i in range(5)]
    assert "indicative: fewer than 4 meta-seeds" in Parsed(run_page(runs).html()).text


def test_a_changed_source_tree_is_never_hidden(tmp_path):
    clean = load_run(write_run(tmp_path / "a"))
    changed = load_run(write_run(tmp_path / "b", commit="0123456789abcdef+changes"))
    assert "differs from the commit" not in Parsed(run_page([clean]).html()).text
    text = Parsed(run_page([clean, changed]).html()).text
    assert "0123456789ab+changes" in text
    assert "1 run made from source that differs from the commit." in text


def test_a_damaged_figure_is_named(tmp_path):
    run = load_run(write_run(tmp_path / "run", figure=b"nothing"))
    with pytest.raises(WarpgradError, match=r"surface\.png: a figure must be the bytes of a PNG or SVG"):
        run_page([run])


def test_no_runs_are_no_report():
    with pytest.raises(WarpgradError, match="at least one run"):
        run_page([])


# In a browser


def test_the_page_runs_in_a_browser_without_a_word_on_the_console(browser, tmp_path, png):
    page = Page("Browser").add(*full_page(png, HOSTILE).sections)
    seen, console = browser(page.write(tmp_path / "report.html"))
    assert console == []
    assert '<html lang="en" data-ready="true">' in seen
    assert 'aria-current="true"' in seen
    buttons = [attributes for tag, attributes in Parsed(seen).tags if tag == "button"]
    assert buttons
    assert not any("hidden" in attributes for attributes in buttons)


def test_the_browser_test_would_notice_an_error_and_a_request(browser, tmp_path):
    html = Page("Broken").html()
    broken = html.replace("</main>", '<img src="https://example.org/a.png"><script>foreign()</script></main>')
    path = tmp_path / "broken.html"
    path.write_text(broken.replace("document.documentElement", "document.nowhere"))
    seen, console = browser(path)
    assert "data-ready" not in seen
    assert any("example.org" in line and "Content Security Policy" in line for line in console)

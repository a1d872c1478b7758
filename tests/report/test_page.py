"""The page: safe text, nothing asked of anybody, written whole or not at all, and what a browser says."""

import base64
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.support.report_pages import HOSTILE, Parsed, charts, full_page, line_chart, linear, png
from warpgrad.errors import WarpgradError
from warpgrad.report import Figure, Gallery, Page, Paragraph, Section

__all__ = ["png"]


def test_hostile_text_is_shown_and_never_obeyed(png):
    plain, hostile = (Parsed(full_page(png, text).html()) for text in ("word", HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert [set(attributes) for _, attributes in hostile.tags] == [set(attributes) for _, attributes in plain.tags]
    assert hostile.text.count(HOSTILE) == plain.text.count("word")
    assert {image["alt"] for image in hostile.all("img")} == {HOSTILE}
    # What describes a chart is data: it names the text, and nothing in it ends the element it stands in.
    (described,) = charts(hostile)
    assert described["title"] == HOSTILE
    assert described["series"][0]["name"] == HOSTILE


def test_prose_sets_code_and_strong_and_nothing_else():
    page = Parsed(Page("t").add(Section("s").add(Paragraph("a `x < y` and **b & c** and * and `` and ** _d_"))).html())
    assert [tag for tag, _ in page.tags if tag in ("code", "strong", "em")] == ["code", "strong"]
    assert "a x < y and b & c and * and `` and ** _d_" in page.text


def test_text_set_as_code_or_strong_is_escaped_too():
    page = Page("t").add(Section("s").add(Paragraph(f"`{HOSTILE}` and **{HOSTILE}**")))
    shown = Parsed(page.html())
    assert shown.text.count(HOSTILE) == 2
    assert not shown.all("img")


def test_text_that_looks_like_a_template_is_shown_as_it_stands(png):
    text = "{{ 7 * 7 }} {% raw %} {# gone #}"
    assert Parsed(full_page(png, text).html()).text.count(text) == Parsed(full_page(png, "word").html()).text.count(
        "word"
    )


# The page as a whole


def test_the_page_asks_nobody_for_anything(png):
    page = Parsed(full_page(png, "see https://example.org/a.css").html())
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "base", "video", "audio"}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("srcset", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    assert page.all("script") == [{"type": "application/json"}, {}, {}]
    _, library, own = page.raw["script"]
    assert "Copyright (c) Anaconda, Inc., and Bokeh Contributors" in library[:100]
    for code in (own.replace("http://www.w3.org/2000/svg", ""), *page.raw["style"]):
        assert "://" not in code
        assert "@import" not in code
        assert "url(" not in code


def test_the_policy_names_exactly_the_script_and_style_of_the_page(png):
    page = Parsed(full_page(png, "x").html())
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    library, own = (digest(code) for code in page.raw["script"][1:])
    assert f"script-src {library} {own};" in policy
    # The library makes styles as it draws; a page without charts allows its own alone, and has no library.
    assert "style-src 'unsafe-inline'" in policy
    bare = Parsed(Page("t").add(Section("s").add(Paragraph("words"))).html())
    (policy,) = [m["content"] for m in bare.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert f"style-src {digest(bare.raw['style'][0])}; script-src {digest(bare.raw['script'][0])};" in policy
    assert "unsafe" not in policy


def digest(code):
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def test_a_page_of_charts_is_small():
    charts = [line_chart() for _ in range(40)]
    assert len(Page("t").add(Section("s").add(*charts)).html()) < 1_500_000
    assert len(Page("t").add(Section("s").add(Paragraph("words"))).html()) < 50_000


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
    page = full_page(png, "x").html()
    assert page == full_page(png, "x").html()
    assert type(page) is str


def _luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return linear(channels) @ [0.2126, 0.7152, 0.0722]


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


def test_figures_are_written_one_by_one_those_side_by_side_too(tmp_path, png):
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    pair = Gallery([Figure(svg, "first"), Figure(png, "second")])
    page = Page("t", "t").add(Section("Tasks, and more").add(pair, Paragraph("words"), line_chart()))
    written = page.write_figures(tmp_path)
    assert [path.name for path in written] == ["tasks-and-more-1.svg", "tasks-and-more-2.png", "tasks-and-more-3.png"]
    assert [path.read_bytes() for path in written] == [svg, png, line_chart().image()]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WarpgradError, match=r"cannot write .*report\.html: .*"):
        Page("t").write(tmp_path / "file" / "report.html")

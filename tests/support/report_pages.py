"""Pages, figures and run directories to test the report with, and a page taken apart."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from warpgrad.report import (
    Chart,
    Code,
    Collapsible,
    Column,
    Figure,
    Forest,
    ForestRow,
    Gallery,
    Heading,
    Items,
    KeyValues,
    Mark,
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
    mean_interval,
    paired_difference,
)

HOSTILE = """<script>alert("1")</script><img src=x onerror='alert(2)'> & "quoted" 'too' </style></script>-->"""
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"><rect width="4" height="3" fill="red"/></svg>'


class Parsed(HTMLParser):
    """A page taken apart; refuses tags that do not nest."""

    VOID = ("meta", "img", "br", "source", "input")

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


def line_chart(**options):
    return Chart([Series.line("Warp-Leap", [0, 1, 2], [3.0, 2.0, 1.0])], x_label="step", y_label="loss", **options)


@pytest.fixture(scope="module")
def png():
    return line_chart().image(size=(7.2, 4.0))


def charts(page):
    """What describes the charts of a page."""
    return [json.loads(text) for text in page.raw["script"] if text.startswith('{"title"')]


def explored(text):
    """A chart and a forest plot with `text` in every place that takes text."""
    x = np.arange(20.0)
    curve = Series.quartiles(text, x, [x + 1, x + 3], method=text, seeds=[text, "other"])
    chart = Chart([curve, Series.line(f"{text} 2", x, x)], text, text, text, text, text,
                  references=[Reference(text, 3.0, text)], marks=[Mark(text, 4.0), Mark(text, 4.0, 2.0)])  # fmt: skip
    scores = np.random.default_rng(0).normal(size=(5, 6))
    rows = [
        ForestRow(text, paired_difference(scores + 1, scores[::-1])),
        ForestRow(text, mean_interval(scores[:2]), text),
    ]
    return [chart, Forest(rows, text, text, text, text)]


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
        Gallery([Figure(SVG, text, text), Figure(png, text, dark=png)]),
        *explored(text),
        Collapsible(text, [KeyValues({text: text, "inner": {text: [1, 2]}}), KeyValues({})]),
    ]
    return Page(text, text).add(Section(text).add(*blocks), Section(text), Section("Content"))


def linear(channels):
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


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

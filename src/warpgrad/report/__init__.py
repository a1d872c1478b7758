"""From finished runs to what a person reads: statistics, figures, tables, and one self-contained page."""

from warpgrad.report.blocks import (
    Block,
    Code,
    Collapsible,
    Figure,
    Gallery,
    Heading,
    Items,
    KeyValues,
    Note,
    Paragraph,
    Section,
    Tile,
    Tiles,
)
from warpgrad.report.charts import Line, Mark, Panel, Reference, Series, Span, curves, panels
from warpgrad.report.figures import PALETTE, appearances, canvas, house_style, save_png
from warpgrad.report.metric_curves import is_number, metric_figures, recorded
from warpgrad.report.overview import run_page
from warpgrad.report.page import Page
from warpgrad.report.provenance import configuration, meta_step_range, repetition
from warpgrad.report.runs import Run, read_run
from warpgrad.report.tables import Best, Cell, Column, Table, Value
from warpgrad.statistics.estimates import Difference, Estimate, mean_interval, paired_difference
from warpgrad.statistics.intervals import Interval

__all__ = [
    "PALETTE",
    "Best",
    "Block",
    "Cell",
    "Code",
    "Collapsible",
    "Column",
    "Difference",
    "Estimate",
    "Figure",
    "Gallery",
    "Heading",
    "Interval",
    "Items",
    "KeyValues",
    "Line",
    "Mark",
    "Note",
    "Page",
    "Panel",
    "Paragraph",
    "Reference",
    "Run",
    "Section",
    "Series",
    "Span",
    "Table",
    "Tile",
    "Tiles",
    "Value",
    "appearances",
    "canvas",
    "configuration",
    "curves",
    "house_style",
    "is_number",
    "mean_interval",
    "meta_step_range",
    "metric_figures",
    "paired_difference",
    "panels",
    "read_run",
    "recorded",
    "repetition",
    "run_page",
    "save_png",
]

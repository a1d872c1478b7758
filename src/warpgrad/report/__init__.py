"""Turns finished runs into something to explore: statistics, charts, tables, and one self-contained page."""

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
from warpgrad.report.charts import Chart, Mark, Reference, Series
from warpgrad.report.forest import Forest, ForestRow
from warpgrad.report.looks import PALETTE, appearances
from warpgrad.report.metric_curves import is_number, metric_charts, recorded
from warpgrad.report.overview import run_page
from warpgrad.report.page import Page
from warpgrad.report.panels import Line, Panel, Span, panels
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
    "Chart",
    "Code",
    "Collapsible",
    "Column",
    "Difference",
    "Estimate",
    "Figure",
    "Forest",
    "ForestRow",
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
    "configuration",
    "is_number",
    "mean_interval",
    "meta_step_range",
    "metric_charts",
    "paired_difference",
    "panels",
    "read_run",
    "recorded",
    "repetition",
    "run_page",
]

"""Memory against K: the same for Algorithm 1, growing for MAML; the few-shot measurement and its section of a page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks import memory_few_shot
from benchmarks.fresh_process import peak_memory
from benchmarks.memory_few_shot import MEMORY_FORMAT, memory_section
from tests.support import ROOT
from tests.support.memory_probe import meta_step
from warpgrad.algorithms import Online, Unrolled
from warpgrad.errors import WarpgradError
from warpgrad.experiments.few_shot.config import PRESETS
from warpgrad.initialisers import MAML, Fixed, Leap
from warpgrad.io import write_json
from warpgrad.objectives import Exact
from warpgrad.report import Page


@pytest.mark.parametrize("initialiser", ["none", "leap", "reptile", "fomaml"])
def test_peak_memory_of_algorithm_1_does_not_grow_with_k(initialiser):
    (short, (live_short, size)), (long, (live_long, _)) = (peak_memory(meta_step, initialiser, k) for k in (10, 640))
    assert live_long == live_short
    # One θ more at K = 640 than at K = 10 would already break this; a kept trajectory would be 630 of them.
    assert long - short < 0.9 * size, (short, long, size)


def test_peak_memory_of_maml_does_grow_with_k():
    (short, (_, size)), (long, _) = (peak_memory(meta_step, "maml", k) for k in (10, 40))
    assert long - short > 30 * size


def record(path: Path) -> Path:
    """Invented numbers: MAML adds 10 MiB a step, the warp stays at 50."""
    points = [
        {"way": way, "label": label, "steps": steps, "before_bytes": 2**30, "peak_bytes": 2**30 + memory * 2**20}
        for way, label, slope in (("maml", "MAML", 10), ("warp", "warp, fixed θ0", 0))
        for steps, memory in ((steps, 50 + slope * steps) for steps in (5, 1))
    ]
    setting = {"ways": 5, "support": 25, "query": 75, "filters": 32, "image_size": 32}
    write_json(path, {"format": MEMORY_FORMAT, "setting": setting, "points": points, "command": "python measure.py"})
    return path


def test_the_record_is_drawn_on_a_page(tmp_path):
    measured = ROOT / "results" / "few-shot-memory.json"
    memory_few_shot.write_page(measured, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for words in ("Memory against adaptation steps", "Warp-MAML", "warp, fixed θ0"):
        assert words in text


def test_the_ways_are_the_few_shot_methods_with_the_stated_initialisers():
    config = dataclasses.replace(PRESETS["small"], steps=7, filters=4)
    found = {way: memory_few_shot.parts(way, config, 32) for way in memory_few_shot.LABELS}
    assert {way: type(algorithm) for way, (_, algorithm) in found.items()} == {
        "maml": Unrolled, "warp-maml": Online, "warp-leap": Online, "warp": Online,
    }  # fmt: skip
    assert {algorithm.steps for _, algorithm in found.values()} == {7}
    assert {way: type(method.initialiser) for way, (method, _) in found.items() if way != "maml"} == {
        "warp-maml": MAML, "warp-leap": Leap, "warp": Fixed,
    }  # fmt: skip
    assert all(isinstance(method.objective, Exact) for way, (method, _) in found.items() if way != "maml")
    task = memory_few_shot.random_episode(config, 32)
    assert [tuple(task.adapt_batch(0)[0].shape), tuple(task.meta_batch(0)[0].shape)] == [
        (25, 3, 32, 32),
        (75, 3, 32, 32),
    ]


def test_memory_grows_with_k_for_maml_and_not_for_the_warps_gradient():
    """Between 5 and 25 steps; each measured in a process of its own."""
    grown = {}
    for way in ("maml", "warp-leap"):
        (before, short), (_, long) = (memory_few_shot.probe(way, steps, 8, 32) for steps in (5, 25))
        assert short > before
        grown[way] = (long - short) / 2**20
    assert grown["maml"] > 20, grown
    assert abs(grown["warp-leap"]) < 0.1 * grown["maml"], grown


def test_the_section_shows_what_a_meta_step_adds_for_every_k(tmp_path):
    section = memory_section(record(tmp_path / "memory.json"))
    page = Page("Memory", "A test.")
    page.add(section)
    text = page.write(tmp_path / "page.html").read_text()
    for words in ("Memory against adaptation steps", "MAML", "warp, fixed θ0", "K = 1", "K = 5", "25 support",
                  "python measure.py"):  # fmt: skip
        assert words in text, words
    table = section.blocks[2]
    assert [list(row) for row in table.rows] == [["MAML", 60, 100], ["warp, fixed θ0", 50, 50]]


def test_another_file_is_refused(tmp_path):
    write_json(tmp_path / "other.json", {"points": []})
    with pytest.raises(WarpgradError, match="holds no memory measurement"):
        memory_section(tmp_path / "other.json")

"""`warpgrad bench`: bare loops and peers compute what the library does, records are whole, pages keep their text."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import pytest
import torch

from warpgrad import bench_commands
from warpgrad.bench import memory, peers, replay
from warpgrad.bench.benchmark import run
from warpgrad.bench.figures import figure
from warpgrad.bench.library import NOISE, check, difference
from warpgrad.bench.steps import QUANTITIES, ways_of
from warpgrad.bench.tables import BEGIN, END, markdown, tables, write_page
from warpgrad.bench.timing import Spread, Timings, interleaved
from warpgrad.bench.workloads import WORKLOADS, mlp, surfaces
from warpgrad.errors import WarpgradError


def test_ways_take_turns_and_the_first_turn_is_not_counted():
    calls, now = [], [0.0]

    def way(name, cost):
        calls.append(name)
        now[0] += cost[len([one for one in calls if one == name]) - 1]

    ways = {"a": partial(way, "a", [90, 2, 4, 6]), "b": partial(way, "b", [90, 1, 4, 2])}
    timings = interleaved(ways, 3, clock=lambda: now[0])
    assert calls == ["a", "b"] * 4
    assert timings.seconds == {"a": [2, 4, 6], "b": [1, 4, 2]}
    # Ratios are taken within repetitions: 2/1, 4/4, 6/2; the ratio of medians would be 4/2 by luck, its ends not.
    assert timings.ratio("a", "b") == Spread(2.0, 1.0, 3.0)
    assert timings.time("a") == Spread(4, 2, 6)
    with pytest.raises(WarpgradError, match="at least once"):
        interleaved(ways, 0)


def test_a_figure_is_met_at_its_target_and_missed_above_it():
    timings = Timings({"ours": [0.3, 0.2], "theirs": [0.2, 0.2]})
    make = partial(figure, timings, "row", "ours", "theirs", 10, words=("what", "against"))
    one = make(most=1.25)
    assert one.ratio.median == pytest.approx(1.25)
    assert one.ours.median == pytest.approx(25.0)  # 250 ms over 10 points
    assert [make(most=most).met for most in (1.26, 1.24, None)] == [True, False, None]


@pytest.mark.parametrize("name", WORKLOADS)
def test_bare_loops_compute_what_the_library_does(name):
    assert check(partial(WORKLOADS[name], True)) <= NOISE
    assert torch.get_default_dtype() == torch.float32


def test_a_loop_with_other_arithmetic_is_refused():
    def wrong():
        work = surfaces(True)
        return dataclasses.replace(work, loss=lambda *arguments: 1.0001 * work.loss(*arguments))

    with pytest.raises(WarpgradError, match="surfaces, more than"):
        check(wrong)


def test_every_quantity_has_a_way_of_its_own_and_a_bare_one():
    for name in ("conv", "surfaces"):
        ways = ways_of(WORKLOADS[name](True))
        assert {*QUANTITIES, *(f"{quantity}, bare" for quantity in QUANTITIES)} <= set(ways)
        assert ("exact, kernels" in ways) == ("first-order" in ways) == (name == "conv")


@pytest.mark.parametrize("name", ["conv", "mlp"])
def test_peers_find_the_same_gradient_of_maml(name):
    modules, absent = peers.present()
    assert set(modules) | set(absent) == {"torchopt", "higher"}
    peers.check(name, True, modules)


def test_a_peer_with_another_gradient_is_refused(monkeypatch):
    def wrong(_, work, module, task):
        inputs, targets = task.meta_batch(0)
        return peers.LOSSES[work.name](module(inputs), targets)

    monkeypatch.setattr(peers, "PEERS", {"json": wrong})
    with pytest.raises(WarpgradError, match="json and this library differ"):
        peers.check("mlp", True, {"json": json})


def test_absent_peers_are_named_with_the_reason(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", {"no_such_library": peers.with_higher})
    monkeypatch.setattr(peers, "LOSSES", {})
    figures, absent = peers.measure(1, True)
    assert figures == []
    assert absent == {"no_such_library": "No module named 'no_such_library'"}


def test_memory_that_grows_is_told_from_memory_that_does_not():
    def peaks(last):
        return [memory.Peak("online", 10, 1000, 100), memory.Peak("online", 640, last, 100)]

    assert [memory.grows(peaks(last)) for last in (1000, 1089, 1091)] == [False, False, True]


def test_memory_is_measured_in_a_process_of_its_own():
    peak = memory.probe("maml", 2)
    assert peak.theta == 4 * (8 * 500 + 500 + 500 * 500 + 500 + 500 * 500 + 500 + 500 + 1)  # MAML adapts all layers
    assert peak.peak > 10 * peak.theta
    with pytest.raises(WarpgradError, match="memory of nothing at K = 2"):
        memory.probe("nothing", 2)


def test_replay_figures_hold_the_bytes_of_theta_and_buffers():
    record = replay.measure(1, True).record()
    learner = WORKLOADS["conv"](True).make()
    tensors = [*learner.theta0.values(), *learner.buffers().values()]
    assert record["entry_bytes"] == sum(-(-one.numel() * one.element_size() // 16) * 16 for one in tensors)
    assert all(record[way][place]["low"] > 0 for way in ("write", "read") for place in ("memory", "disk"))


def test_a_record_is_whole_and_becomes_tables():
    record = run(("surfaces",), repetitions=1, quick=True)
    assert json.loads(json.dumps(record)) == record
    assert record["hardware"]["threads"] == 1
    assert record["versions"]["torch"] == torch.__version__
    assert record["differences"]["surfaces"] <= NOISE
    assert len(record["figures"]) == len(QUANTITIES) + 2
    for one in record["figures"]:
        assert one["row"] == "surfaces"
        assert one["ratio"]["low"] <= one["ratio"]["median"] <= one["ratio"]["high"]
        assert one["met"] == (None if one["at_most"] is None else one["ratio"]["median"] <= one["at_most"])
    (table,) = tables(record)
    assert len(table.rows) == len(record["figures"])
    assert "a trial" in markdown(record)


def test_tables_name_absent_peers_memory_and_replay():
    spread = {"median": 1.0, "low": 1.0, "high": 1.0}
    peaks = [{"method": "online", "steps": k, "bytes": 10**6 + k, "theta_bytes": 100} for k in (10, 640)]
    record = {
        **run((), repetitions=1, quick=True),
        "absent": {"torchopt": "not installed"},
        "memory": {"peaks": peaks, "online_grows": True},
        "replay": {"entry_bytes": 1600, "entries": 1, "write": {"disk": spread}, "read": {"disk": spread}},
    }
    ratios, held, kept = tables(record)
    assert "not installed" in ratios.rows[0]
    assert held.title.endswith("missed")
    assert held.rows[1] == ("online", "640", "1", "6.3")
    assert "1,600 bytes" in kept.title


def test_a_page_keeps_all_but_what_stands_between_the_marks(tmp_path):
    record, page = run((), repetitions=1, quick=True), tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    write_page(page, record)
    once = page.read_text()
    assert once == f"above\n{BEGIN}\n\n{markdown(record)}\n{END}\nbelow\n"
    write_page(page, record)
    assert page.read_text() == once
    page.write_text("no marks")
    with pytest.raises(WarpgradError, match="has no place for the tables"):
        write_page(page, record)


def test_the_command_writes_a_record_and_names_what_it_does_not_know(tmp_path, capsys):
    out = tmp_path / "bench.json"
    bench_commands.bench(["--rows", "replay", "--quick", "--repetitions", "1", "--out", str(out)])
    assert json.loads(out.read_text())["rows"] == ["replay"]
    assert "bytes per entry" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(WarpgradError, match="no row 'nothing'"):
        bench_commands.bench(["--rows", "nothing"])
    with pytest.raises(WarpgradError, match="repetitions=0"):
        bench_commands.bench(["--rows", "replay", "--repetitions", "0"])


def test_difference_is_relative():
    ones = {"a": torch.ones(2), "b": torch.ones(2)}
    assert difference({name: 1.5 * value for name, value in ones.items()}, ones) == pytest.approx(0.5)


def test_workloads_are_the_same_each_time():
    first, second = mlp(True), mlp(True)
    assert torch.equal(first.tasks[1].adapt_batch(3)[0], second.tasks[1].adapt_batch(3)[0])
    assert all(torch.equal(a, b) for a, b in zip(first.make().phi.values(), second.make().phi.values(), strict=True))

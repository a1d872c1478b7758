"""`python -m benchmarks`: loops and peers compute what the library does, records are whole, pages keep their text."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import elsewhere, growth, memory, omniglot_step, peers, ranks, replay, worker_pool
from benchmarks.__main__ import main, run
from benchmarks.compiled import piece_by
from benchmarks.elsewhere import Elsewhere
from benchmarks.estimates import CONFIGURATIONS, Cost, Prediction, configuration
from benchmarks.fresh_process import in_fresh_process, peak_memory
from benchmarks.library import NOISE, check, difference
from benchmarks.tables import BEGIN, END, FIGURE, Line, markdown, panels_of, short, tables, write_page
from benchmarks.timing import Spread, Timings, figure, interleaved
from benchmarks.worker_pool import Job, prepared, worker_pools
from benchmarks.workloads import WORKLOADS, mlp, surfaces
from tests.support import ROOT, memory_probe
from warpgrad.adaptation.compiled import compiler
from warpgrad.algorithms.ranks import Ranks
from warpgrad.errors import WarpgradError


def test_ways_take_turns_and_the_first_turn_is_not_counted():
    calls, now = [], [0.0]

    def way(name, cost):
        calls.append(name)
        now[0] += cost[len([one for one in calls if one == name]) - 1]

    # 70 is the call that warms the caches again at the beginning of a turn, 90 the turn that is not counted.
    ways = {"a": partial(way, "a", [70, 90, 2, 70, 4, 6]), "b": partial(way, "b", [90, 70, 1, 4, 70, 2])}
    timings = interleaved(ways, 3, clock=lambda: now[0])
    assert calls == ["a", "a", "b", "b", "b", "a"] * 2
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


def test_the_bare_loop_over_alphabets_computes_what_the_library_does():
    omniglot_step.check(dataclasses.replace(omniglot_step.configuration(2, 2, 4, 4), data="drawn"))


def test_a_loop_with_other_arithmetic_is_refused():
    def wrong():
        work = surfaces(True)
        return dataclasses.replace(work, loss=lambda *arguments: 1.0001 * work.loss(*arguments))

    with pytest.raises(WarpgradError, match="surfaces, more than"):
        check(wrong)


@pytest.mark.parametrize("name", ["conv", "mlp"])
def test_peers_find_the_same_gradient_of_maml(name):
    modules, absent = peers.present()
    assert not absent, "the peers come with warpgrad[dev]"
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


JAX = """print("mlp  exact meta-step, ms per (task, step): 0.5")
print("surfaces exact meta-step, ms per (task, step): 1e-03")"""


def test_peers_elsewhere_are_measured_where_they_are_named_and_absent_otherwise(tmp_path, monkeypatch):
    assert elsewhere.measure_jax(Elsewhere(), 1, True) == ([], {"jax": "name it with --jax-python and --jax-program"})
    assert elsewhere.measure_authors(Elsewhere(), 1, True)[1] == {"authors' package": "name its folder with --authors"}
    program = tmp_path / "online.py"
    program.write_text(JAX)
    assert elsewhere.jax_milliseconds(Path(sys.executable), program) == {"mlp": 0.5, "surfaces": 0.001}
    # Where a peer is has nothing to do with how ours is run.
    monkeypatch.setattr(elsewhere, "compiled_piece", lambda work: piece_by(work, "batched"))
    figures, absent = elsewhere.measure_jax(Elsewhere(Path(sys.executable), program), 1, True)
    assert absent == {}
    assert [(one.row, one.theirs.median) for one in figures] == [("mlp", 0.5), ("surfaces", pytest.approx(0.001))]
    program.write_text("raise SystemExit('no jax here')")
    assert elsewhere.measure_jax(Elsewhere(Path(sys.executable), program), 1, True)[1] == {"jax": "no jax here"}
    no_python = elsewhere.measure_jax(Elsewhere(tmp_path / "python", program), 1, True)[1]
    assert no_python == {"jax": f"{tmp_path / 'python'} cannot be started: No such file or directory"}
    no_package = elsewhere.measure_authors(Elsewhere(authors=tmp_path), 1, True)[1]
    assert no_package == {"authors' package": f"{tmp_path} holds no package warpgrad"}


PROFILE = """
import sys
assert sys.argv[1:] == ["--agents", "warp-rnn", "--updates", "1"], sys.argv
print("agent                    ms/update  environment  hours for 20 000")
print("warp-rnn                       1234         1.7%              0.70")
print("                        the environment's share is within the target of 15%")
"""


def test_agents_are_held_against_an_earlier_version_where_one_is_named(tmp_path):
    missing = {"earlier version": "name a clone of this repository at an earlier commit with --before"}
    assert elsewhere.measure_before(Elsewhere(), 1, True) == ([], missing)
    no_clone = elsewhere.measure_before(Elsewhere(before=tmp_path), 1, True)[1]
    assert no_clone == {"earlier version": f"{tmp_path} holds no clone of this repository"}
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "maze_profile.py").write_text(PROFILE)
    (one,), absent = elsewhere.measure_before(Elsewhere(before=tmp_path), 1, True)
    assert absent == {}
    assert (one.row, one.against, one.theirs.median) == ("rnn", "earlier version", pytest.approx(1234))
    assert one.ours.median > 0
    (tmp_path / "benchmarks" / "maze_profile.py").write_text("")
    silent = elsewhere.measure_before(Elsewhere(before=tmp_path), 1, True)[1]
    assert silent == {"earlier version": f"{tmp_path} printed no line for warp-rnn"}


STAND_IN = """
class ReplayBuffer: ...
class DualUpdater:
    def __init__(self, criterion, approx): assert approx
class OptimizerParameters:
    def __init__(self, trainable, default_lr, default_momentum): self.lr = default_lr
class Warp:
    def __init__(self, model, adapt_modules, warp_modules, updater, buffer, optimizer_parameters):
        self.model, self.adapt, self.warps = model, adapt_modules, warp_modules
    def __call__(self, x): return self.model(x)
    def init_parameters(self): return [p.detach().clone() for m in self.adapt for p in m.parameters()]
    def warp_parameters(self): return [p for m in self.warps for p in m.parameters()]
    def optimizer_parameter_groups(self): return [{"params": p} for m in self.adapt for p in m.parameters()]
    def register_task(self, data): self.data = data
    def collect(self): ...
    def init_adaptation(self): self.model.init_adaptation()
    def backward(self, update, lr): update()
"""


def test_the_authors_package_is_the_one_of_the_folder(tmp_path):
    """A stand-in with their calls is found in either place, before the package of this library."""
    for place in (tmp_path / "flat", tmp_path / "repository" / "src" / "warpgrad"):
        (place / "warpgrad").mkdir(parents=True)
        (place / "warpgrad" / "__init__.py").write_text(STAND_IN)
    for folder in (tmp_path / "flat", tmp_path / "repository"):
        (one,), absent = elsewhere.measure_authors(Elsewhere(authors=folder), 1, True)
        assert absent == {}
        assert one.against == "authors' package"
        assert one.theirs.median > 0


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.slow
def test_compiled_meta_steps_are_held_against_traced_ones():
    record = run(("compiled",), repetitions=1, quick=True)
    assert [(one["row"], one["against"]) for one in record["figures"]] == [("mlp", "traced"), ("surfaces", "traced")]
    assert max(record["differences"].values()) <= NOISE


def test_memory_that_grows_is_told_from_memory_that_does_not():
    def peaks(last):
        return [memory.Peak("online", 10, 1000, 100), memory.Peak("online", 640, last, 100)]

    assert [memory.grows(peaks(last)) for last in (1000, 1089, 1091)] == [False, False, True]


def test_peak_memory_counts_what_was_freed_again_and_nothing_of_this_process():
    """400 MB held here are not seen there; 200 MB that were held there for a moment are."""
    here = torch.ones(100_000_000)
    (none, _), (some, value) = (peak_memory(memory_probe.hold, megabytes) for megabytes in (0, 200))
    assert value == 200
    assert 195e6 < some - none < 205e6
    assert none < here.numel() * here.element_size()


def test_what_fails_in_a_fresh_process_is_told_in_a_sentence():
    with pytest.raises(WarpgradError, match=r"hold\(-1\) could not be measured.*: .*negative dimension"):
        in_fresh_process(memory_probe.hold, -1)


def test_the_row_memory_tells_the_size_of_theta():
    peak = memory.probe("maml", 2)
    assert peak.theta == 4 * (8 * 500 + 500 + 500 * 500 + 500 + 500 * 500 + 500 + 500 + 1)  # MAML adapts all layers
    assert peak.peak > 10 * peak.theta


def test_replay_figures_hold_the_bytes_of_theta_and_buffers():
    record = replay.measure(1, True).record()
    learner = WORKLOADS["conv"](True).make()
    tensors = [*learner.theta0.values(), *learner.buffers().values()]
    assert record["entry_bytes"] == sum(-(-one.numel() * one.element_size() // 64) * 64 for one in tensors)
    assert set(record["write"]) == set(record["read"]) == {"memory", "disk"}


def test_a_record_is_whole_and_becomes_tables():
    record = run(("conv", "rnn"), repetitions=1, quick=True)
    assert json.loads(json.dumps(record)) == record
    assert min(record["seconds"][row] for row in ("conv", "rnn")) > 0
    assert record["hardware"]["threads"] == 1
    assert record["versions"]["torch"] == torch.__version__
    assert max(record["differences"].values()) <= NOISE
    targets = {(one["row"], one["what"], one["against"]): one["at_most"] for one in record["figures"]}
    assert len(targets) == len(record["figures"])
    # A target holds where both sides do the same arithmetic, and where both have the same size.
    for what in ("exact meta-gradient", "whole meta-step"):
        assert targets["conv", what, "bare loop"] is None
        assert targets["conv", what, "bare loop, our second derivatives"] is not None
    assert targets["conv", "inner step", "bare loop"] is not None
    assert [target for (row, _, _), target in targets.items() if row == "rnn"] == [None] * 6
    (table,) = tables(record)
    assert len(table.rows) == len(record["figures"])
    assert "a trial" in markdown(record)


def test_tables_name_absent_peers_memory_and_replay():
    spread = {"median": 1.0, "low": 1.0, "high": 1.0}
    places = {"disk": spread, "memory": spread}
    peaks = [{"method": "online", "steps": k, "bytes": 10**6 + k, "theta_bytes": 100} for k in (10, 640)]
    record = {
        **run((), repetitions=1, quick=True),
        "absent": {"torchopt": {"row": "maml", "reason": "not installed"}},
        "memory": {"peaks": peaks, "online_grows": True},
        "replay": {"entry_bytes": 1600, "entries": 1, "write": places, "read": places},
    }
    ratios, held, kept = tables(record)
    assert "not installed" in ratios.rows[0]
    assert held.title.endswith("missed")
    assert held.rows[1] == ("online", "640", "1", "6.3")
    assert "1,600 bytes" in kept.title


def test_throughputs_are_those_of_all_workers_of_a_pool():
    """Two processes of 2 s and 6 s do a meta-step each in the time of 1.5 s per meta-step; ranks do one in 2 s."""
    assert ranks.together([2.0, 6.0]) == pytest.approx(1.5)
    one = ranks.throughput("what", 10, [(2.0, 1.5), (1.0, 0.93), (1.0, 0.99)])
    assert (one.ratio.low, one.ratio.median, one.ratio.high) == pytest.approx((0.75, 0.93, 0.99))
    assert one.ranks.median == pytest.approx(100.0)  # 1 s over 10 points, in ms
    assert one.met
    assert not ranks.throughput("what", 10, [(1.0, 0.84)]).met


def test_a_job_moves_what_it_is_to_train():
    """Adaptation trains θ0 alone, by Leap; Algorithm 2 the warp too, η points at a time on all ranks."""
    changed = {}
    for samples in (0, 2):
        method, meta_step = prepared(Job(2, 2, samples, quick=True), Ranks())
        before = {name: value.detach().clone() for name, value in method.learner.phi.items()}
        meta_step()
        changed[samples] = not all(torch.equal(before[name], value) for name, value in method.learner.phi.items())
    assert changed == {0: False, 2: True}


def test_ranks_are_one_group_and_the_processes_beside_them_are_none():
    with worker_pools(ranks=2, alone=1) as (shared, alone):
        assert (shared.ranks, alone.ranks) == ((2, 2), (1,))
        job = Job(2, 2, 2, quick=True)
        assert [len(pool.seconds(job)) for pool in (shared, alone)] == [2, 1]


class FakePool:
    """Its workers take as long as told for a point, and the first job, which warms up, a hundred times as long."""

    def __init__(self, *seconds):
        self.given, self.seen = seconds, set()

    def seconds(self, job):
        slow = 1 if job in self.seen else 100
        self.seen.add(job)
        return [slow * each * job.points for each in self.given]


def test_two_ranks_and_two_processes_take_turns(monkeypatch):
    @contextmanager
    def fake_pools(ranks, alone):
        assert (ranks, alone) == (2, 2)
        yield FakePool(1.0, 2.0), FakePool(2.0, 6.0)

    monkeypatch.setattr(ranks, "worker_pools", fake_pools)
    record = run(("ranks",), repetitions=3, quick=True)
    # Two ranks are as fast as the slower of them; two processes together do a meta-step in 1.5.
    same = {"ratio": 0.75, "milliseconds": 2e3, "milliseconds_against": 1.5e3}
    assert [one["what"] for one in record["ranks"]] == ["adaptation", "Algorithm 2, η = 2"]
    for one in record["ranks"]:
        for name, value in same.items():
            assert one[name] == pytest.approx(dict.fromkeys(("median", "low", "high"), value))
    (table,) = tables(record)
    assert [row[-2:] for row in table.rows] == [("≥ 0.85", "missed")] * 2


def test_a_worker_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(worker_pool.sys, "executable", "/bin/false")
    with pytest.raises(WarpgradError, match="has not started: it left no message"), worker_pools():
        pass


def test_growth_has_a_curve_for_everything_and_becomes_a_figure(tmp_path, monkeypatch):
    @contextmanager
    def fake_pools(ranks, alone):
        assert (ranks, alone) == (2, 1)
        yield FakePool(1.0, 3.0), FakePool(6.0)

    monkeypatch.setattr(growth, "worker_pools", fake_pools)
    record = run(("growth",), repetitions=1, quick=True)
    curves = {(one["axis"], one["name"]): one for one in record["growth"]}
    assert {axis for axis, _ in curves} == {"K", "tasks", "η", "parameters", "ranks"}
    assert curves["K", "MAML"]["places"] == curves["tasks", "conv"]["places"] == [1, 2]
    # Two ranks take as long as the slower of them.
    assert curves["ranks", "adaptation"]["milliseconds"][1]["median"] == pytest.approx(3.0 * 4 * 1e3)
    assert curves["ranks", "adaptation"]["exponent"] == pytest.approx(-1.0)
    learner = WORKLOADS["conv"](True).make()  # 8 filters, the first size
    own = sum(value.numel() for value in (*learner.theta0.values(), *learner.phi.values()))
    assert curves["parameters", "exact"]["places"][0] == own
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    write_page(page, record)
    assert f"]({FIGURE})" in page.read_text()
    assert (tmp_path / FIGURE).read_bytes().startswith(b"\x89PNG")
    peaks = [{"method": "online", "steps": k, "bytes": 10**6 * k, "theta_bytes": 100} for k in (10, 640)]
    *times, held = panels_of({**record, "memory": {"peaks": peaks}})
    assert [panel.x_label for panel in times] == [panel.x_label for panel in panels_of(record)]
    assert [len(panel.lines) for panel in times] == [3, 2, 2, 3, 2]
    assert held.lines == (Line("Algorithm 1", [10, 640], [10.0, 640.0]),)


def test_ticks_are_short():
    assert [short(value) for value in (0.05, 32, 12_500, 2_000_000)] == ["0.05", "32", "12.5k", "2M"]


def test_predictions_are_met_within_a_quarter():
    pairs = [(Cost(12.5, 100, 0), Cost(10.0, 140, 0)), (Cost(8.0, 100, 0), Cost(8.0, 140, 0))]
    one = Prediction("run", [*pairs, (Cost(18.0, 100, 0), Cost(9.0, 140, 0))]).record()
    assert one["met"] == {"seconds": True, "peak_bytes": False, "buffer_bytes": None}
    assert one["ratios"]["seconds"] == {"median": 1.25, "low": 1.0, "high": 2.0}
    assert one["ratios"]["peak_bytes"]["median"] == pytest.approx(100 / 140)
    assert one["ratios"]["buffer_bytes"] is None
    assert Prediction("run", [(Cost(1, 1, 5), Cost(1, 1, 0))]).record()["met"]["buffer_bytes"] is False
    (table,) = tables({**run((), repetitions=1, quick=True), "estimate": [one]})
    assert table.rows == (
        ("run", "time", "12 s", "9 s", "1.25 [1.00, 2.00]", "within 25%", "met"),
        ("run", "peak memory", "100 bytes", "140 bytes", "0.71 [0.71, 0.71]", "within 25%", "missed"),
    )


def test_an_estimate_is_held_against_its_run():
    (one,) = run(("estimate",), repetitions=1, quick=True)["estimate"]
    assert one["met"]["peak_bytes"], one
    assert one["predicted"]["buffer_bytes"] == one["real"]["buffer_bytes"] == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_that_are_predicted_are_whole(name):
    experiment, config = configuration(name, False)
    assert config.method in experiment.methods


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


def test_the_page_shows_the_record():
    """The record was written by the benchmark of its time; it still builds the tables of docs/cost.md."""
    record = json.loads((ROOT / "results" / "bench.json").read_text())
    between = (ROOT / "docs" / "cost.md").read_text().split(BEGIN)[1].split(END)[0]
    assert between == f"\n\n{markdown(record)}\n"


def test_the_command_writes_a_record_and_names_what_it_does_not_know(tmp_path, capsys):
    out = tmp_path / "bench.json"
    main(["--rows", "replay", "--quick", "--repetitions", "1", "--out", str(out)])
    assert json.loads(out.read_text())["rows"] == ["replay"]
    assert "bytes per entry" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(WarpgradError, match="no row 'nothing'"):
        run(["nothing"])
    with pytest.raises(WarpgradError, match="repetitions=0"):
        main(["--rows", "replay", "--repetitions", "0"])


def test_difference_is_relative():
    ones = {"a": torch.ones(2), "b": torch.ones(2)}
    assert difference({name: 1.5 * value for name, value in ones.items()}, ones) == pytest.approx(0.5)


def test_workloads_are_the_same_each_time():
    first, second = mlp(True), mlp(True)
    assert torch.equal(first.tasks[1].adapt_batch(3)[0], second.tasks[1].adapt_batch(3)[0])
    assert all(torch.equal(a, b) for a, b in zip(first.make().phi.values(), second.make().phi.values(), strict=True))

"""The replay buffer: what goes in comes out, in memory and on disk, within its budget."""

from __future__ import annotations

import pytest
import torch

import warpgrad as wg
from warpgrad.algorithms.replay import ReplayBudget, ReplayBuffer


def point(k: int) -> wg.Point:
    draw = torch.Generator().manual_seed(k)
    theta = {
        "w": torch.randn(3, 5, generator=draw),
        "b": torch.randn((), generator=draw, dtype=torch.float64),
    }
    buffers = {"count": torch.tensor(k), "mean": torch.randn(7, generator=draw)}
    return wg.Point(k, theta, buffers, {"momentum/w": torch.randn(3, 5, generator=draw)})


@pytest.mark.parametrize("on_disk", [False, True])
def test_entries_come_back_bit_for_bit(tmp_path, on_disk):
    budget = ReplayBudget(memory=0 if on_disk else 1 << 20, directory=tmp_path)
    buffer = ReplayBuffer(6, budget)
    for k in range(6):
        buffer.append(k % 2, point(k), {"w": torch.full((3, 5), float(k))} if k else {"w": torch.zeros(3, 5)})
    assert buffer.on_disk is on_disk
    assert list(tmp_path.iterdir()) == []  # the scratch file has no name that a kill could leave behind
    for place in reversed(range(6)):
        entry, expected = buffer[place], point(place)
        assert (entry.task, entry.point.k) == (place % 2, place)
        for section in ("theta", "buffers", "state"):
            kept, given = getattr(entry.point, section), getattr(expected, section)
            assert set(kept) == set(given)
            for name, value in given.items():
                assert kept[name].dtype == value.dtype
                assert torch.equal(kept[name], value)
        assert torch.equal(entry.increment["w"], torch.full((3, 5), float(place)))
    buffer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_stored_point_does_not_change_with_its_source():
    buffer, moving = ReplayBuffer(1), point(0)
    buffer.append(0, moving)
    moving.theta["w"].zero_()
    assert torch.equal(buffer[0].point.theta["w"], point(0).theta["w"])


@pytest.mark.parametrize("on_disk", [False, True])
def test_memory_formats_come_back_too(tmp_path, on_disk):
    """θ that lost its format would be laid out anew at every use; what has gaps is stored without them."""
    last = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    theta = {
        "last": last,
        "turned": torch.randn(3, 5).T,
        "gaps": torch.randn(6, 4)[:, ::2],
        "one": torch.ones(()).expand(3),
    }
    buffer = ReplayBuffer(2, ReplayBudget(memory=0 if on_disk else 1 << 20, directory=tmp_path))
    # Formats are those of the first entry; values never depend on them.
    for k, given in enumerate((theta, {name: value.contiguous() for name, value in theta.items()})):
        buffer.append(0, wg.Point(k, given, {}, {}))
    for place in range(2):
        kept = buffer[place].point.theta
        assert all(torch.equal(kept[name], value) for name, value in theta.items())
        assert kept["last"].stride() == last.stride()
        assert kept["turned"].stride() == theta["turned"].stride()
        assert kept["gaps"].is_contiguous()
        assert kept["one"].is_contiguous()
    buffer.close()


def test_too_many_bytes_are_refused_before_anything_is_written(tmp_path):
    buffer = ReplayBuffer(1000, ReplayBudget(memory=10, disk=100, directory=tmp_path))
    with pytest.raises(wg.WarpgradError, match=r"needs .* bytes for 1000 points.*raise ReplayBudget"):
        buffer.append(0, point(0))
    assert list(tmp_path.iterdir()) == []


def test_offline_on_disk_equals_offline_in_memory(tmp_path):
    from tests.support.problems import Recorder, make_task, mlp

    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1, momentum=0.9), wg.Exact(), wg.Leap())
    tasks = [make_task(mlp, seed) for seed in range(2)]
    seen = []
    for memory in (0, 1 << 30):
        recorder = Recorder()
        budget = ReplayBudget(memory=memory, directory=tmp_path)
        algorithm = wg.Offline(steps=3, tasks=2, samples=2, budget=budget)
        algorithm.meta_step(method, tasks, [1, 2], recorder)
        seen.append(recorder.seen)
    assert list(tmp_path.iterdir()) == []
    for (_, first), (_, second) in zip(*seen, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)

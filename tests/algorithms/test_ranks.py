"""Equal shares of the points of Algorithm 2: who evaluates what, and what changes hands for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warpgrad.algorithms.ranks import Ranks
from warpgrad.algorithms.replay import Shares, balanced


def ranks_of(size: int) -> list[Ranks]:
    found = [Ranks() for _ in range(size)]
    for index, rank in enumerate(found):
        rank.size, rank.index = size, index
    return found


@given(st.lists(st.integers(0, 3), max_size=12))
def test_points_are_shared_equally_and_few_change_hands(owners):
    size = 4
    found = balanced(owners, size)
    loads = [found.count(rank) for rank in range(size)]
    assert max(loads) - min(loads) <= 1
    most = -(-len(owners) // size)
    # Whatever lies above the largest load that is allowed has to move, and so does what fills ranks up to the smallest.
    above = sum(max(owners.count(rank) - most, 0) for rank in range(size))
    below = sum(max(len(owners) // size - owners.count(rank), 0) for rank in range(size))
    assert sum(old != new for old, new in zip(owners, found, strict=True)) == max(above, below)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.randoms())
def test_every_point_is_evaluated_once_by_a_rank_that_has_it(size, tasks, steps, eta, random):
    order = [(task, k) for task in range(tasks) for k in range(steps)]
    random.shuffle(order)
    ranks = ranks_of(size)
    shares = [Shares(order, eta, tasks, rank) for rank in ranks]
    for place, begin in enumerate(range(0, len(order), eta)):
        parts = [share.updates[place] for share in shares]
        assert sorted(pair for part in parts for pair in part) == sorted(order[begin : begin + eta])
    for rank, share in zip(ranks, shares, strict=True):
        own = {(task, k) for task in range(tasks)[rank.share(tasks)] for k in range(steps)}
        received = {pair for _, receiver, pair in share.moves if receiver == rank.index}
        assert share.incoming == len(received)
        assert {pair for update in share.updates for pair in update} <= own | received
        assert {pair for sender, _, pair in share.moves if sender == rank.index} <= own


@given(st.integers(2, 4), st.integers(1, 5), st.integers(1, 9), st.randoms())
def test_parcels_arrive_whatever_few_are_under_way_at_a_time(size, tasks, eta, random):
    """Ranks that name one parcel at a time and wait for it: some parcel is always named by both its ranks."""
    order = [(task, k) for task in range(tasks) for k in range(3)]
    random.shuffle(order)
    waiting = [list(Shares(order, eta, tasks, rank).moves) for rank in ranks_of(size)]
    while any(waiting):
        heads = [moves[0] for moves in waiting if moves]
        met = [move for move in heads if heads.count(move) == 2]
        assert met
        for rank in met[0][:2]:
            assert waiting[rank].pop(0) == met[0]

"""Who evaluates which points of a meta-step's replay, where several ranks share it.

Points lie where they were collected, and chance puts more of some update's η points on one rank than on another: with
two ranks and η = 2 both on one in every second update, while the other would wait. So every rank evaluates an equal
share, and points that it lacks are handed over. All ranks draw the same order, so all know before the first update
which points will move: they move at once, and no update waits for one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from torch import Tensor

from warpgrad.ranks import Ranks
from warpgrad.replay import Entry, ReplayBuffer

Pair = tuple[int, int]
"""Task and step of a point."""


class Shares:
    """The shares of all updates of a meta-step, as one rank sees them, and the points it has for them."""

    def __init__(self, order: Sequence[Pair], eta: int, tasks: int, ranks: Ranks) -> None:
        """`order` is that of the replayed points of `tasks` tasks; each `eta` consecutive ones make an update."""
        self.updates: list[list[Pair]] = []
        """The points that this rank evaluates, update by update."""
        self.moves: list[tuple[int, int, Pair]] = []
        """Sender, receiver and point, for the points that this rank sends or receives, in an order common to all."""
        self._ranks = ranks
        self._replayed = frozenset(order)
        self._places: dict[Pair, int] = {}
        holders = min(ranks.size, tasks)  # a rank without a task does not know what an entry looks like
        ends = [ranks.share(tasks, rank).stop for rank in range(holders)]
        for begin in range(0, len(order), eta):
            chosen = order[begin : begin + eta]
            owners = [bisect_right(ends, task) for task, _ in chosen]
            triples = list(zip(owners, balanced(owners, holders), chosen, strict=True))
            self.updates.append([pair for _, rank, pair in triples if rank == ranks.index])
            self.moves += [(old, new, pair) for old, new, pair in triples if old != new and ranks.index in (old, new)]

    @property
    def incoming(self) -> int:
        """How many points this rank receives."""
        return sum(receiver == self._ranks.index for _, receiver, _ in self.moves)

    def __contains__(self, pair: object) -> bool:
        """Whether a point is replayed at all."""
        return pair in self._replayed

    def collected(self, pair: Pair, place: int) -> None:
        """Note where in the replay buffer a point lies."""
        self._places[pair] = place

    def hand_over(self, buffer: ReplayBuffer) -> None:
        """Send what others evaluate, and take in what this rank does; called by all ranks."""
        if self._ranks.size > 1:
            self._ranks.hand_over(self._parcels(buffer))

    def entries(self, update: Sequence[Pair], buffer: ReplayBuffer) -> list[Entry]:
        """The points of an update that this rank evaluates."""
        return [buffer[self._places[pair]] for pair in update]

    def _parcels(self, buffer: ReplayBuffer) -> Iterator[tuple[int, int, Tensor]]:
        for sender, receiver, pair in self.moves:
            if receiver == self._ranks.index:
                self._places[pair] = buffer.reserve(*pair)
            yield sender, receiver, buffer.packed(self._places[pair])


def balanced(owners: Sequence[int], size: int) -> list[int]:
    """Which of `size` ranks evaluates each point, if `owners` hold them: equal shares, with as few moved as can be."""
    held = [owners.count(rank) for rank in range(size)]
    each, more = divmod(len(owners), size)
    richest = sorted(range(size), key=lambda rank: -held[rank])[:more]
    free = [each + (rank in richest) for rank in range(size)]
    chosen: list[int | None] = []
    for owner in owners:
        keeps = free[owner] > 0
        free[owner] -= keeps
        chosen.append(owner if keeps else None)
    spare = iter([rank for rank in range(size) for _ in range(free[rank])])
    return [next(spare) if rank is None else rank for rank in chosen]

"""The named methods of the paper as choices of parts: each is one line, to be read and changed.

| recipe         | L: how φ is learned  | C: how θ0 is learned | algorithm                        | in the paper |
|----------------|----------------------|----------------------|----------------------------------|--------------|
| `warp_maml`    | exact                | MAML, Eq. 1          | `Online`, few steps              | §4.1         |
| `warp_leap`    | exact or approximate | Leap, Eqs. 16-17     | `Online`, or `Offline` as App. E | §4.2, App. E |
| `warp_rnn`     | in-place, Eq. 18     | multi-task           | `Continual`                      | §4.3, App. I |
| `start_alone`  | none                 | whichever is given   | `Online`                         | baselines    |
| `unrolled`     | none, Eq. 1 for all  | none, Eq. 1 for all  | `Unrolled`                       | §2.1         |
"""

from __future__ import annotations

from warpgrad.algorithms.method import Method
from warpgrad.initialisers.base import Initialiser
from warpgrad.initialisers.points import MAML, Leap, MultiTask
from warpgrad.model.learner import Learner
from warpgrad.objectives.base import Objective
from warpgrad.objectives.warp import Exact, InPlace
from warpgrad.rules.base import Rule


def warp_maml(learner: Learner, rule: Rule) -> Method:
    """Warp-MAML: L is exact, and C is MAML's loss after K steps, whose gradient goes to θ0 alone."""
    return Method(learner, rule, Exact(), MAML())


def warp_leap(learner: Learner, rule: Rule, objective: Objective | None = None) -> Method:
    """Warp-Leap: L is exact unless another objective is given, and C is the length of the path of adaptation."""
    return Method(learner, rule, objective or Exact(), Leap())


def warp_rnn(learner: Learner, rule: Rule) -> Method:
    """Warp-RNN: one backward pass on each batch gives both the gradient for φ and the one for θ."""
    return Method(learner, rule, InPlace(), MultiTask())


def start_alone(learner: Learner, rule: Rule, initialiser: Initialiser) -> Method:
    """Leap, Reptile or first-order MAML by itself: θ0 is learned and there is no warp."""
    return Method(learner, rule, None, initialiser)


def unrolled(learner: Learner, rule: Rule) -> Method:
    """MAML and its family, for `Unrolled`, which has one objective for θ0, φ and the rule together."""
    return Method(learner, rule)

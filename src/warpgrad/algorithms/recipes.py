"""The named methods of the paper as choices of parts: each is one line, to be read and changed.

| method                             | L: how φ is learned  | C: how θ0 is learned | algorithm                        |
|------------------------------------|----------------------|----------------------|----------------------------------|
| `warp_maml(learner, rule)`, §4.1   | exact                | MAML, Eq. 1          | `Online`, few steps              |
| `warp_leap(learner, rule)`, §4.2   | exact or approximate | Leap, Eqs. 16-17     | `Online`, or `Offline` as App. E |
| `warp_rnn(learner, rule)`, App. I  | in-place, Eq. 18     | multi-task           | `Continual`                      |
| `Method(learner, rule, None, C)`   | no warp              | Leap, Reptile, …     | `Online`                         |
| `Method(learner, rule)`, §2.1      | Eq. 1 for φ, θ0, ρ   | the same             | `Unrolled`: MAML and its family  |
"""

from __future__ import annotations

from warpgrad.algorithms.method import Method
from warpgrad.initialisers import MAML, Leap, MultiTask
from warpgrad.model.learner import Learner
from warpgrad.objectives import Exact, InPlace, Objective
from warpgrad.rules import Rule


def warp_maml(learner: Learner, rule: Rule) -> Method:
    """Build Warp-MAML: L is exact, and C is MAML's loss after K steps, whose gradient goes to θ0 alone.

    Example:
        >>> type(wg.warp_maml(learner, wg.SGD(0.1)).initialiser).__name__
        'MAML'
    """
    return Method(learner, rule, Exact(), MAML())


def warp_leap(learner: Learner, rule: Rule, objective: Objective | None = None) -> Method:
    """Build Warp-Leap: L is exact unless another objective is given, and C is the length of the adaptation path.

    Example:
        >>> type(wg.warp_leap(learner, wg.SGD(0.1)).initialiser).__name__
        'Leap'
    """
    return Method(learner, rule, objective or Exact(), Leap())


def warp_rnn(learner: Learner, rule: Rule) -> Method:
    """Build Warp-RNN: one backward pass on each batch gives both the gradient for φ and the one for θ.

    Example:
        >>> type(wg.warp_rnn(learner, wg.SGD(0.1)).initialiser).__name__
        'MultiTask'
    """
    return Method(learner, rule, InPlace(), MultiTask())

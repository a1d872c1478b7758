"""The ⊕ of App. A."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class Residual(nn.Module):
    """shortcut(h) + branch(h), with the identity as the shortcut where none is given."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, h: Tensor) -> Tensor:
        return cast(Tensor, self.shortcut(h) + self.branch(h))

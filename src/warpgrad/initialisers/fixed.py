"""C = 0: the initialisation stays as it is."""

from __future__ import annotations

from warpgrad.initialisers.base import Initialiser


class Fixed(Initialiser):
    """θ0 is the module's own initialisation and never changes; with start policy `fresh`, redrawn per task."""

    learns = False

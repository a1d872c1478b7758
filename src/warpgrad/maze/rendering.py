"""An episode as pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpgrad.maze.rules import Maze

FLOOR, WALL, GOAL, AGENT = (244, 244, 240), (61, 69, 78), (0, 158, 115), (193, 39, 45)


def picture(maze: Maze, goal: int, position: int | None = None, pixels: int = 8) -> NDArray[np.uint8]:
    """The maze with its goal and, where given, the agent; a cell is a square of `pixels`."""
    image = np.where(maze.walls[..., None], np.array(WALL), np.array(FLOOR)).astype(np.uint8)
    image[tuple(maze.cells[goal])] = GOAL
    image = image.repeat(pixels, axis=0).repeat(pixels, axis=1)
    if position is not None:
        row, column = maze.cells[position] * pixels
        inset = pixels // 5
        image[row + inset : row + pixels - inset, column + inset : column + pixels - inset] = AGENT
    return image

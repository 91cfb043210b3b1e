"""Pictures of worlds: what an environment renders, and drawings of posttrain's own worlds of cells without a package.

A picture is (H, W, 3) uint8, RGB.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from learning.control.worlds.cliffs import Cliffs
from learning.control.worlds.doors import DOOR, GOAL, SIZE, WALL, Doors
from learning.control.worlds.gem_grids import GemGrid
from learning.control.worlds.grids import Cell, Grid, Rooms
from learning.control.worlds.histories import Maze
from schemas.errors import StepError

MODE = "rgb_array"
"""Gymnasium's and PettingZoo's name for pictures as arrays."""
CELL, MARGIN = 16, 3
"""Pixels of a cell, and of the rim around a mark in it."""
FLOOR, STONE, TARGET, PIT, AGENT, OTHER = range(6)
COLOURS = np.array(
    [(238, 238, 238), (64, 64, 64), (76, 175, 80), (0, 0, 0), (214, 69, 65), (52, 101, 164)], dtype=np.uint8
)
"""Colours of the numbers above."""


def try_picture(make: Callable[[], Any]) -> None:
    """Raise StepError if a world has no pictures."""
    world = make()
    world.reset(seed=0)
    try:
        draw(world)
    finally:
        world.close()


def draw(world: Any) -> np.ndarray:
    """Return the present picture of a world that was reset. Raise StepError if it has none, or cannot make it.

    A world around another one, such as a team or `remembering`, shows that one, which it keeps as `world`.
    """
    inner = getattr(world, "unwrapped", world)
    picture = draw_cells(inner)
    if picture is not None:
        return picture
    if MODE in (getattr(inner, "metadata", None) or {}).get("render_modes", ()):
        return _render(world, inner)
    if hasattr(inner, "world"):
        return draw(inner.world)
    raise StepError(
        f"{type(inner).__name__} has no pictures: remove `record`, or list {MODE!r} in the environment's "
        "`metadata['render_modes']` and return a picture from its `render()`"
    )


def _render(world: Any, inner: Any) -> np.ndarray:
    """Return what a world renders. Raise StepError if that fails or is no picture."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays need no window, and SDL complains without a display
    try:
        inner.render_mode = MODE
        picture = world.render()
    except Exception as error:  # an environment of the user's may raise anything
        raise StepError(f"{type(inner).__name__} cannot render: {type(error).__name__}: {error}") from error
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        found = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise StepError(f"{type(inner).__name__} renders {found} in place of an array (height, width, 3) of uint8")
    return picture


def draw_cells(world: Any) -> np.ndarray | None:
    """Return the drawing of one of posttrain's own worlds of cells; None for any other."""
    match world:
        case Grid():
            ground = np.full((world.size, world.size), FLOOR)
            ground[-1, -1] = TARGET
            return paint(ground, [(world.cell, AGENT)])
        case Rooms():
            ground = np.where(world.walls, STONE, FLOOR)
            ground[world.goal] = TARGET
            return paint(ground, [(world.cell, AGENT)])
        case Cliffs():
            ground = np.full((world.height, world.width), FLOOR)
            for pit in world.pits:
                ground[pit] = PIT
            ground[-1, -1] = TARGET
            return paint(ground, [(world.cell, AGENT)])
        case Doors():
            ground = np.full((SIZE, SIZE), FLOOR)
            ground[:, WALL] = STONE
            ground[DOOR], ground[GOAL] = FLOOR, TARGET
            return paint(ground, [(world.cell, AGENT)])
        case Maze():
            return _draw_maze(world)
        case GemGrid():
            return _draw_gems(world)
    return None


def _draw_maze(world: Maze) -> np.ndarray:
    """Return a corridor with its fork; the way that pays, above or below its last cell, is the target."""
    ground = np.full((3, world.length + 1), STONE)
    ground[1], ground[:, -1] = FLOOR, FLOOR
    ground[2 * world.sign, -1] = TARGET
    return paint(ground, [((1, world.cell), AGENT)])


def _draw_gems(world: GemGrid) -> np.ndarray:
    """Return two agents as marks on a grid; the cell of a gem has the colour of its owner."""
    ground = np.full(world.cells, FLOOR)
    for gem, colour in zip(world.gem, (AGENT, OTHER), strict=True):
        if gem >= 0:
            ground[gem] = colour
    marks = [(divmod(cell, world.size), colour) for cell, colour in zip(world.place, (AGENT, OTHER), strict=True)]
    return paint(ground.reshape(world.size, world.size), marks, rim=STONE)


def paint(
    ground_RC: np.ndarray, marks: Iterable[tuple[Sequence[int] | Cell, int]], rim: int | None = None
) -> np.ndarray:
    """Return a picture (CELL·R, CELL·C, 3) of cells with their colours, and a square for each mark (cell, colour)."""
    picture = COLOURS[ground_RC].repeat(CELL, 0).repeat(CELL, 1)
    for (row, column), colour in marks:
        top, left = row * CELL, column * CELL
        if rim is not None:
            picture[top + MARGIN - 1 : top + CELL - MARGIN + 1, left + MARGIN - 1 : left + CELL - MARGIN + 1] = COLOURS[
                rim
            ]
        picture[top + MARGIN : top + CELL - MARGIN, left + MARGIN : left + CELL - MARGIN] = COLOURS[colour]
    return picture

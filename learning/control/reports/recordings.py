"""Episodes as animated GIFs: few frames, one palette, equal pictures give equal bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from learning.control.policies.playing import begin
from learning.control.reports.pictures import draw
from learning.control.stepping.worlds import Worlds
from schemas.errors import StepError

MOST_COLOURS = 256
USUAL_RATE = 10
"""Steps per second of worlds that do not say theirs, as `render_fps` of their metadata."""


@dataclass
class Film:
    """Pictures of an episode at every `stride`-th step and at its end; if there would be too many, half of them go."""

    limit: int
    max_side: int
    stride: int = 1
    steps: list[int] = field(default_factory=list)
    """Steps of the frames."""
    frames: list[np.ndarray] = field(default_factory=list)

    def add(self, step: int, world: Any, *, is_last: bool = False) -> None:
        """Take the picture of a step, if it is wanted. Raise StepError for a world without pictures."""
        if not is_last and step % self.stride == 0 and len(self.frames) == self.limit - 1:  # one is left for the end
            self.stride *= 2
            self.steps, self.frames = self.steps[::2], self.frames[::2]
        if not is_last and step % self.stride:
            return
        frame = reduce(draw(world), self.max_side)
        if self.frames and frame.shape != self.frames[0].shape:
            raise StepError(f"the picture of step {step} has another size than the first one")
        self.steps.append(step)
        self.frames.append(frame)


def reduce(picture: np.ndarray, max_side: int) -> np.ndarray:
    """Return a picture reduced by a whole factor until its longer side has at most `max_side` pixels."""
    factor = -(-max(picture.shape[:2]) // max_side)
    return picture if factor == 1 else np.asarray(Image.fromarray(picture).reduce(factor))


class FilmedWorlds(Worlds):
    """One world whose first episode is filmed: its start, every step, and its end before the next one begins."""

    film: Film | None = None

    def begin_film(self, film: Film) -> None:
        """Film the episode that has just started."""
        self.film = film
        film.add(0, self.worlds[0])

    def _reset(self, n: int) -> np.ndarray:
        if self.film is not None:
            self.film.add(len(self.actions[n]), self.worlds[n], is_last=True)
            self.film = None
        return super()._reset(n)


def film_episode(worlds: FilmedWorlds, actor: Any, film: Film, *, explore: bool) -> float:
    """Play and film an episode as `learning.control.policies.playing.play` does, and return its return."""
    player = begin(actor, 1)
    worlds.begin_film(film)
    while True:
        steps = worlds.step(player.act(worlds.observation, explore=explore))
        player.see(steps)
        if steps.ended:
            return steps.ended[0][1]
        film.add(len(worlds.actions[0]), worlds.worlds[0])


def write_gif(file: Path, film: Film, rate: float) -> None:
    """Write a film as a GIF that repeats, `rate` steps of the world in a second, its end for one second.

    Up to 256 different colours are exact; more are replaced by the nearest of 256.
    """
    pages = index_colours(film.frames)
    ends = [*film.steps[1:], film.steps[-1] + rate]
    waits = [max(2, round(100 * (end - start) / rate)) * 10 for start, end in zip(film.steps, ends, strict=True)]
    pages[0].save(
        file, format="GIF", save_all=True, append_images=pages[1:], duration=waits, loop=0, optimize=False, disposal=1
    )


def index_colours(frames: Sequence[np.ndarray]) -> list[Image.Image]:
    """Return frames as pages with one palette."""
    packed = [frame.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32) for frame in frames]
    colours = np.unique(np.concatenate([page.reshape(-1) for page in packed]))
    if len(colours) > MOST_COLOURS:
        shared = Image.fromarray(np.concatenate(frames)).quantize(MOST_COLOURS, Image.Quantize.MAXCOVERAGE)
        return [Image.fromarray(one).quantize(palette=shared, dither=Image.Dither.NONE) for one in frames]
    palette = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], -1).astype(np.uint8).tobytes()
    pages = [Image.fromarray(np.searchsorted(colours, page).astype(np.uint8), "P") for page in packed]
    for page in pages:
        page.putpalette(palette)
    return pages


def read_rate(world: Any) -> float:
    """Return how many steps of a world make a second."""
    rate = (getattr(getattr(world, "unwrapped", world), "metadata", None) or {}).get("render_fps")
    return float(rate) if rate else float(USUAL_RATE)

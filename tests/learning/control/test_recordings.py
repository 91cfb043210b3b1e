"""Recorded episodes: which steps are shown, and that a GIF holds exactly their pictures."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from learning.control.reports.recordings import Film, FilmedWorlds, film_episode, read_rate, reduce, write_gif
from learning.control.worlds.grids import grid
from schemas.errors import StepError
from tests.control_worlds import Line


class Walk:
    """Goes down and to the right by turns."""

    def begin(self, count):
        self.steps = 0
        return self

    def act(self, observation_NO, *, explore):
        return np.array([(1, 3)[self.steps % 2]])

    def see(self, steps):
        self.steps += 1


def film(size, limit, max_frames=100):
    worlds = FilmedWorlds(lambda: grid(size=size, limit=limit), 1, 3, "test")
    made = Film(max_frames, 400)
    return made, film_episode(worlds, Walk(), made, explore=False), worlds


def agent(frame):
    """Return the cell in the middle of which the agent's colour is."""
    ((row, column),) = np.argwhere((frame[8::16, 8::16] == (214, 69, 65)).all(-1))
    return int(row), int(column)


def read(file):
    with Image.open(file) as gif:
        pages = []
        for n in range(gif.n_frames):
            gif.seek(n)
            pages.append((np.asarray(gif.convert("RGB")), gif.info["duration"]))
        return pages, gif.info["loop"]


def test_every_step_is_shown_with_the_end_before_the_next_episode_begins(tmp_path):
    made, earned, _ = film(size=3, limit=20)
    assert earned == 1
    assert made.steps == [0, 1, 2, 3, 4]
    way = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
    assert [agent(frame) for frame in made.frames] == way
    write_gif(tmp_path / "a.gif", made, rate=10)
    pages, loop = read(tmp_path / "a.gif")
    assert loop == 0
    assert [agent(page) for page, _ in pages] == way
    assert all(np.array_equal(page, frame) for (page, _), frame in zip(pages, made.frames, strict=True))
    assert [wait for _, wait in pages] == [100, 100, 100, 100, 1000]


@pytest.mark.parametrize(
    ("steps", "limit", "shown"),
    [
        (6, 8, [0, 1, 2, 3, 4, 5, 6]),
        (7, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, 8, [0, 2, 4, 6, 8]),
        (9, 5, [0, 4, 8, 9]),
        (9, 2, [0, 9]),
        (40, 6, [0, 8, 16, 24, 32, 40]),
    ],
)
def test_a_long_episode_shows_steps_at_equal_distances_and_its_end(steps, limit, shown):
    made, earned, _ = film(size=24, limit=steps, max_frames=limit)
    assert earned == 0
    assert made.steps == shown
    assert [agent(frame) for frame in made.frames] == [((step + 1) // 2, step // 2) for step in shown]


def test_pictures_wait_as_long_as_the_steps_between_them_and_equal_ones_are_one(tmp_path):
    made = Film(10, 200, steps=[0, 4, 8, 9], frames=[np.full((4, 4, 3), n, np.uint8) for n in (1, 2, 2, 3)])
    write_gif(tmp_path / "a.gif", made, rate=20)
    pages, _ = read(tmp_path / "a.gif")
    assert [(int(page[0, 0, 0]), wait) for page, wait in pages] == [(1, 200), (2, 250), (3, 1000)]


def test_many_colours_become_the_nearest_of_256_and_equal_films_give_equal_bytes(tmp_path):
    across, down = np.meshgrid(np.arange(64), np.arange(64))
    frames = [np.stack([across * 4, down * 4, np.full_like(across, 80 * n)], -1).astype(np.uint8) for n in range(3)]
    digests = set()
    for name in ("a.gif", "b.gif"):
        write_gif(tmp_path / name, Film(10, 200, steps=[0, 1, 2], frames=frames), rate=10)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1
    pages, _ = read(tmp_path / "a.gif")
    shown = np.stack([page for page, _ in pages])
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) <= 256
    assert np.abs(shown.astype(int) - np.stack(frames)).mean((1, 2, 3)).max() < 5


def test_a_large_picture_is_reduced_by_the_mean_of_blocks():
    picture = np.random.default_rng(0).integers(0, 256, (90, 60, 3), dtype=np.uint8)
    assert np.array_equal(reduce(picture, 90), picture)
    small = reduce(picture, 89)
    assert small.shape == (45, 30, 3)
    means = picture.reshape(45, 2, 30, 2, 3).mean((1, 3))
    assert np.abs(small - means).max() <= 0.5
    assert reduce(picture, 30).shape == (30, 20, 3)


def test_pictures_of_several_sizes_are_refused():
    world = grid(size=2)
    world.reset(seed=0)
    made = Film(10, 200)
    made.add(0, world)
    world.size = 3
    with pytest.raises(StepError, match="the picture of step 1 has another size"):
        made.add(1, world)


def test_a_second_has_as_many_steps_as_the_world_says():
    world = Line()
    assert read_rate(world) == 10
    world.metadata = {"render_fps": 50}
    assert read_rate(world) == 50

"""Pictures of worlds, by their pixels."""

import gymnasium
import numpy as np
import pytest

from learning.control.reports.pictures import AGENT, COLOURS, FLOOR, OTHER, PIT, STONE, TARGET, draw, try_picture
from learning.control.rounds.model_sets import AnyOf
from learning.control.stepping.teams import join_agents
from learning.control.worlds.cliffs import cliffs
from learning.control.worlds.doors import doors
from learning.control.worlds.gem_grids import gem_grid
from learning.control.worlds.grids import grid, rooms
from learning.control.worlds.histories import Maze, Remembering
from schemas.errors import StepError
from tests.control_worlds import Line

DOWN, RIGHT = 1, 3


def grounds(picture):
    """Return the colours (R, C) that cells have at their rim, as numbers of `COLOURS`."""
    return numbers(picture[::16, ::16])


def marks(picture):
    """Return the colours that cells have in their middle."""
    return numbers(picture[8::16, 8::16])


def numbers(pixels):
    return (pixels[..., None, :] == COLOURS).all(-1).argmax(-1)


def test_a_grid_shows_its_goal_and_the_agent_wherever_it_goes():
    world = grid(size=3)
    world.reset(seed=0)
    for action, cell in ((None, (0, 0)), (DOWN, (1, 0)), (RIGHT, (1, 1)), (RIGHT, (1, 2)), (DOWN, (2, 2))):
        if action is not None:
            world.step(action)
        picture = draw(world)
        assert (picture.shape, picture.dtype) == ((48, 48, 3), np.uint8)
        ground = np.full((3, 3), FLOOR)
        ground[2, 2] = TARGET
        assert grounds(picture).tolist() == ground.tolist()
        ground[cell] = AGENT
        assert marks(picture).tolist() == ground.tolist()
    square = (picture[32:, 32:] == COLOURS[AGENT]).all(-1)
    assert square.sum() == 100
    assert square[3:13, 3:13].all()  # the mark leaves a rim of three pixels, in which the goal is seen


def test_rooms_show_the_map_that_is_observed():
    world = rooms(size=6)
    for seed in range(5):
        walls, goal, agent = world.reset(seed=seed)[0]
        picture = draw(world)
        expected = np.where(walls == 1, STONE, np.where(goal == 1, TARGET, FLOOR))
        assert grounds(picture).tolist() == expected.tolist()
        assert marks(picture).tolist() == np.where(agent == 1, AGENT, expected).tolist()


def test_cliffs_doors_and_mazes():
    world = cliffs(width=4, height=2, pits=[(1, 1)])
    world.reset(seed=0)
    assert marks(draw(world)).tolist() == [[FLOOR] * 4, [AGENT, PIT, FLOOR, TARGET]]
    world = doors()
    world.reset(seed=3)
    world.cell = (2, 2)
    row = [FLOOR, FLOOR, STONE, FLOOR, FLOOR]
    assert grounds(draw(world)).tolist() == [row, row, [FLOOR] * 5, row, [*row[:4], TARGET]]
    assert np.argwhere(marks(draw(world)) == AGENT).tolist() == [[2, 2]]
    world = Maze(length=3, symbols=2, entrance=1, limit=9)
    for seed in range(4):
        world.reset(seed=seed)
        shown = marks(draw(world))
        assert shown[1].tolist() == [FLOOR, AGENT, FLOOR, FLOOR]
        assert shown[:, 3].tolist() == ([TARGET, FLOOR, FLOOR] if world.sign == 0 else [FLOOR, FLOOR, TARGET])
        assert (shown[[0, 2], :3] == STONE).all()


def test_a_team_shows_both_agents_and_the_gems_that_are_left():
    world = gem_grid(size=3)
    world.reset(seed=0)
    world.place, world.gem = [0, 4], [2, -1]
    picture = draw(join_agents(world))
    assert grounds(picture).tolist() == [[FLOOR, FLOOR, AGENT], [FLOOR] * 3, [FLOOR] * 3]
    assert marks(picture).tolist() == [[AGENT, FLOOR, AGENT], [FLOOR, OTHER, FLOOR], [FLOOR] * 3]
    assert numbers(picture[2, 8]) == STONE
    assert numbers(picture[2, 40]) == AGENT  # a gem has no rim


def test_a_world_around_another_one_shows_that_one():
    inner = rooms(size=4)
    around = Remembering(inner, 2)
    around.reset(seed=2)
    assert np.array_equal(draw(around), draw(inner))
    several = AnyOf([grid(size=2), grid(size=2)])
    several.reset(seed=1)
    several.world.cell = (1, 0)
    assert marks(draw(several)).tolist() == [[FLOOR, FLOOR], [AGENT, TARGET]]
    limited = gymnasium.wrappers.TimeLimit(grid(size=2), 3)
    limited.reset(seed=1)
    assert marks(draw(limited)).tolist() == [[AGENT, FLOOR], [FLOOR, TARGET]]


def test_a_world_of_gymnasium_renders_as_it_does_by_itself():
    pytest.importorskip("pygame", reason="no pygame: pip install pygame-ce")
    world, rendering = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1", render_mode="rgb_array")
    for one in (world, rendering):
        one.reset(seed=5)
        one.step(1)
    picture = draw(world)
    assert picture.shape == (400, 600, 3)
    assert np.array_equal(picture, rendering.render())
    assert np.array_equal(world.unwrapped.state, rendering.unwrapped.state)


class Drawn(Line):
    metadata = {"render_modes": ["human", "rgb_array"]}

    def render(self):
        return self.picture


def test_what_is_no_picture_is_refused_by_name():
    with pytest.raises(StepError, match="Line has no pictures: remove `record`, or list 'rgb_array'"):
        try_picture(Line)
    world = Drawn()
    with pytest.raises(StepError, match="Drawn cannot render: AttributeError"):
        draw(world)
    world.picture = np.zeros((4, 4, 3))
    with pytest.raises(StepError, match=r"Drawn renders float64 \(4, 4, 3\) in place of an array"):
        draw(world)
    world.picture = [1]
    with pytest.raises(StepError, match="Drawn renders list in place of"):
        draw(world)
    world.picture = np.full((2, 5, 3), 7, np.uint8)
    assert np.array_equal(draw(world), world.picture)

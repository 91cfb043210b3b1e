"""Best actions in the grids, without a network. Shapes: N worlds, O numbers of an observation."""

from collections import deque

import numpy as np

from learning.control.stepping.spaces import Spaces
from learning.control.worlds.grids import MOVES


def to_corner(observation_NO: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Act in `grid`: down or right at random, as long as both lead closer to the corner that pays."""
    row_N, column_N = observation_NO.T
    down_N = np.where(row_N == 1, False, np.where(column_N == 1, True, rng.random(len(row_N)) < 0.5))
    return np.where(down_N, 1, 3)


def to_goal(observation_NO: np.ndarray, spaces: Spaces) -> np.ndarray:
    """Act in `rooms`: along a shortest way to the goal."""
    size = round((spaces.observations / 3) ** 0.5)
    return np.array([_find_move(*layers) for layers in observation_NO.reshape(-1, 3, size, size)])


def _find_move(walls: np.ndarray, goal: np.ndarray, agent: np.ndarray) -> int:
    """Return the first move on a shortest way from the agent to the goal, by distances from the goal."""
    size, ends = len(walls), [divmod(int(layer.argmax()), len(walls)) for layer in (goal, agent)]
    distances, frontier = {ends[0]: 0}, deque([ends[0]])
    while frontier:
        row, column = frontier.popleft()
        for change in MOVES:
            after = row + change[0], column + change[1]
            inside = 0 <= after[0] < size and 0 <= after[1] < size
            if inside and not walls[after] and after not in distances:
                distances[after] = distances[row, column] + 1
                frontier.append(after)
    row, column = ends[1]
    reached = [distances.get((row + down, column + right), size * size) for down, right in MOVES]
    return int(np.argmin(reached))

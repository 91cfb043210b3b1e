"""Lines of curves are means over the iterations since the last line, and shares of a time are shares of all of it."""

import pytest

from learning.rl.monitoring import Curves
from learning.streaming.stream_metrics import StreamMetrics


def lines_of(points, every):
    """What is told of these iterations, a line for each `every`."""
    lines = []
    curves = Curves(lambda **line: lines.append(line), every, len(points))
    for step, point in enumerate(points):
        curves.add(step, point)
    return lines


def test_a_line_is_the_mean_of_the_iterations_that_have_a_point():
    points = [{"reward": 1.0}, {"reward": 2.0, "eval_reward": 5.0}, {"reward": 6.0}]
    assert lines_of(points, 2) == [
        {"step": 2, "reward": 1.5, "eval_reward": 5.0},
        {"step": 3, "reward": 6.0},
    ]


def test_idle_time_is_a_share_of_all_the_time_of_a_line():
    """Two services; a long iteration that was busy throughout, and a short one that was idle."""
    metrics = StreamMetrics()
    first = metrics.read([{"busy_s": 50.0, "idle_s": 0.0}, {"busy_s": 46.0, "idle_s": 0.0}])
    second = metrics.read([{"busy_s": 50.0, "idle_s": 1.0}, {"busy_s": 47.0, "idle_s": 2.0}])
    assert (first["generator_idle_share"], second["generator_idle_share"]) == (0.0, 0.75)
    (line,) = lines_of([first, second], 2)
    assert line["generator_idle_share"] == pytest.approx(3 / 100)
    assert line["generator_seconds"] == pytest.approx(100 / 2)


def test_a_service_that_counts_steps_and_no_time_is_never_idle():
    metrics = StreamMetrics()
    points = [metrics.read([{"busy_s": 0.0, "idle_s": 0.0}]) for _ in range(2)]
    assert [line["generator_idle_share"] for line in lines_of(points, 2)] == [0.0]

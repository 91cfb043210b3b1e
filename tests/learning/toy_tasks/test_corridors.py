"""The walker of the corridor: the way to the goal, or a random direction."""

import numpy as np
import pytest

from learning.toy_tasks.corridors import corridor_walker
from schemas.errors import StepError


def make_row(way):
    first = {"role": "user", "content": "at 9, goal 3 to the left"}
    last = {"role": "user", "content": f"at 8, goal 4 to the {way}"}
    return {"id": "a", "prompt": [first, {"role": "assistant", "content": "left"}, last]}


def test_the_walker_goes_where_the_last_message_says_at_the_given_rate():
    rng = np.random.default_rng(0)
    assert [corridor_walker(make_row(way), rng) for way in ("right", "left")] == ["right", "left"]
    many = [corridor_walker(make_row("right"), rng, right=0.2) for _ in range(2000)]
    assert many.count("right") / 2000 == pytest.approx(0.2 + 0.8 / 2, abs=0.03)
    assert {*many} == {"left", "right"}
    with pytest.raises(StepError, match="row b: no direction in the last message"):
        corridor_walker({"id": "b", "prompt": [{"role": "user", "content": "write one of: left, right"}]}, rng)

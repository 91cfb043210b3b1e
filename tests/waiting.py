"""Waiting for what other processes and threads do, by looking at it."""

import time

LOOK = 0.01
"""Seconds between two looks."""


def wait_for(condition, seconds=120.0, *, alive=lambda: True, said=lambda: "waited too long"):
    """Look until the condition gives something true, and return that.

    Fails with what `said` gives after so many seconds, or as soon as who is waited for is not `alive` any more.
    """
    limit = time.monotonic() + seconds
    while not (result := condition()):
        assert alive(), said()
        assert time.monotonic() < limit, said()
        time.sleep(LOOK)
    return result

"""Objects in threads behave as those in processes do."""

import threading

import pytest

from learning.parallel.actors import Lost, Threads
from schemas.errors import StepError


class Counter:
    def __init__(self, start=0, refuse=None):
        if refuse:
            raise refuse
        self.value, self.free = start, threading.Event()

    def add(self, more):
        self.value += more
        return self.value

    def hang(self, seconds):
        self.free.wait(seconds)

    def fail(self, error):
        raise error

    def die(self):
        raise SystemExit


def test_one_call_after_the_other_in_objects_of_their_own():
    actors = Threads({"reward": 2})
    first, second = actors.start("reward", Counter, 3)
    assert [a.result(9) for a in [first.call("add", n) for n in (1, 10)]] == [4, 14]
    assert second.call("add", 0).result(9) == 3
    assert (actors.size("reward"), actors.size("rollout")) == (2, 0)
    assert actors.start("rollout", Counter) == []
    with pytest.raises(StepError, match="at work already"):
        actors.start("reward", Counter)
    actors.close()


def test_errors_keep_their_message():
    (remote,) = Threads({"reward": 1}).start("reward", Counter)
    with pytest.raises(StepError, match=r"^lower it$"):
        remote.call("fail", StepError("lower it")).result(9)
    with pytest.raises(StepError, match=r"^reward: KeyError: 'x'$"):
        remote.call("fail", KeyError("x")).result(9)
    assert remote.call("add", 2).result(9) == 2
    (broken,) = Threads({"reward": 1}).start("reward", Counter, refuse=StepError("no model"))
    with pytest.raises(StepError, match=r"^no model$"):
        broken.call("add", 1).result(9)


def test_a_stopped_engine_can_be_started_again():
    actors = Threads({"reward": 1})
    (remote,) = actors.start("reward", Counter, 5)
    remote.call("add", 1).result(9)
    hanging, queued = remote.call("hang", 600), remote.call("add", 1)
    remote.stop()
    for answer in (hanging, queued, remote.call("add", 1)):
        with pytest.raises(Lost):
            answer.result(9)
    assert not remote.alive()
    fresh = actors.restart(remote)
    assert fresh.call("add", 1).result(9) == 6
    with pytest.raises(Lost):
        fresh.call("die").result(9)
    assert not fresh.alive()
    fresh = actors.restart(fresh)
    assert fresh.call("add", 1).result(9) == 6
    actors.close()
    assert not fresh.alive()

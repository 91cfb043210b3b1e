"""Episodes in environments behind OpenEnv's protocol: against the rules of the corridor, and servers that fail."""

import json
import random
import re
import threading

import numpy as np
import pytest
from websockets.sync.server import serve

from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.toy_tasks.corridors import corridor_walker
from schemas.errors import StepError
from schemas.package import ROOT
from schemas.use import EnvUse, ProblemsUse

CORRIDOR = {
    "use": "openenv",
    "command": ["python", "server.py", "--port", "{port}"],
    "folder": str(ROOT / "data/servers/corridor"),
    "actions": {"left": {"direction": "left"}, "right": {"direction": "right"}},
    "show": "text",
    "kwargs": {"fields": 7},
}


def make(**options):
    return build_environment(EnvUse.model_validate({"use": "openenv", **options}), {})


def begin(environment, start=0):
    return environment.begin({"id": "a", "metadata": json.dumps({"start": start})}, seed=0)


@pytest.fixture
def stranger():
    """A server that answers each session with the given messages; returns its address and what it received."""
    answers, received = [], []

    def talk(connection):
        for text in connection:
            received.append(json.loads(text))
            if received[-1]["type"] != "close":
                connection.send(answers.pop(0))

    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", answers, received
        server.shutdown()
        thread.join()


def observe(**data):
    return json.dumps({"type": "observation", "data": data})


def test_episodes_follow_the_rules_of_the_environment_and_starts_are_seeds():
    environment = make(**CORRIDOR)
    draw = random.Random(7)
    place, goal = draw.sample(range(1, 8), 2)
    assert environment.show_start(7) == f"you are at {place}, the goal is at {goal}"
    play, other = begin(environment, 7), begin(environment, 8)
    assert other.shown == environment.show_start(8) != play.shown
    lost = play.step("stay")
    assert (lost.observation, lost.ok, lost.done) == ("write one of: left, right", False, False)
    steps = abs(goal - place)
    word = "right" if goal > place else "left"
    outcomes = [play.step(f"I go {word}") for _ in range(steps)]
    assert [outcome.reward for outcome in outcomes] == [0.0] * (steps - 1) + [1.0]
    assert [outcome.done for outcome in outcomes] == [False] * (steps - 1) + [True]
    process = environment.server.process
    environment.server.end()
    assert process.poll() is not None


def test_starts_are_the_problems_of_stages_and_the_folder_is_an_input():
    use = {"use": "starts", "env": {**CORRIDOR, "folder": "path:./corridor"}, "size": 3, "split": "test"}
    inputs = {"problems.env.folder": ROOT / "data/servers/corridor"}
    rows = bind(ProblemsUse.model_validate(use), "problems", inputs)()
    environment = make(**CORRIDOR)
    for row in rows:
        assert row["prompt"][0]["content"] == begin(environment, json.loads(row["metadata"])["start"]).shown


def test_the_walker_of_the_shipped_recipe_goes_from_near_starts_to_the_goal():
    environment = make(**CORRIDOR | {"show": "way", "kwargs": {"fields": 60, "farthest": 6}})
    rng = np.random.default_rng(0)
    for start in range(20):
        play = begin(environment, start)
        steps, seen = int(re.findall(r"\d+", play.shown)[1]), play.shown
        assert 1 <= steps <= 6
        for _ in range(steps):
            prompt = [{"role": "user", "content": seen}]
            outcome = play.step(corridor_walker({"id": "a", "prompt": prompt}, rng))
            seen = outcome.observation
        assert (outcome.reward, outcome.done) == (1.0, True)


def test_actions_and_observations_are_messages_of_the_protocol(stranger):
    url, answers, received = stranger
    answers += [
        observe(observation={"echoed": "", "metadata": {}, "done": False}, reward=None, done=False),
        observe(observation={"echoed": "hello"}, reward=0.5, done=False),
        observe(observation={}, reward=True, done=True),
    ]
    play = begin(make(url=url, kwargs={"level": 2}), 5)
    assert play.shown == '{"echoed": ""}'
    first, last = play.step("hello"), play.step("end")
    assert (first.observation, first.reward, first.done) == ('{"echoed": "hello"}', 0.5, False)
    assert (last.observation, last.reward, last.done) == ("", 1.0, True)
    assert received[:3] == [
        {"type": "reset", "data": {"seed": 5, "level": 2}},
        {"type": "step", "data": {"message": "hello"}},
        {"type": "step", "data": {"message": "end"}},
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (json.dumps({"type": "error", "data": {"message": "no such tool", "code": "X"}}), "error: no such tool"),
        ("[]", "error: the server's answer is no message of OpenEnv"),
        ("{", "error: "),
        (observe(observation={"text": "a"}, reward=float("nan")), "error: the reward nan is no finite number"),
        (observe(reward=0), "error: the server's answer has no observation"),
        (observe(observation={"a": 1}), "error: an observation has no `text`; it has a"),
    ],
)
def test_what_goes_wrong_on_the_server_ends_the_episode_only(stranger, answer, message):
    url, answers, _ = stranger
    answers += [observe(observation={"text": "a"}), answer]
    environment = make(url=url, show="text", field=None)
    play = begin(environment)
    odd = play.step("[1]")
    assert (odd.observation, odd.ok) == ("write an action as a JSON object", False)
    outcome = play.step('{"x": 1}')
    assert outcome.observation.startswith(message)
    assert (outcome.done, outcome.ok, outcome.reward) == (True, False, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either `command`"),
        ({"url": "http://example.com"}, "name example.com in `hosts`"),
        ({"command": ["python", "x.py"]}, r"must contain \{port\}"),
        ({"command": ["no-such-program", "{port}"]}, "no-such-program cannot be started"),
        ({"command": ["python", "-c", "print('no module'); 'x{port}'"]}, "does not listen on port .*: no module"),
    ],
)
def test_a_wrong_server_is_refused_by_name(options, message):
    with pytest.raises(StepError, match=message):
        make(**options)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(StepError, match=r"no session at ws://127\.0\.0\.1:1/ws"):
        make(url="http://127.0.0.1:1").show_start(0)

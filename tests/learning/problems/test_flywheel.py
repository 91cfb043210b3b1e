"""Episodes of a model are played as chats, graded by what they earn, and routed to two sets."""

import json
import re

import pytest

from learning.data.chat import encode_prompt
from learning.data.rows import read_rows, write_rows
from learning.environments.protocol import Outcome
from learning.lookup import bind
from learning.problems import flywheel
from learning.problems.flywheel import Trace, play_turn, route
from learning.samples.engine_protocol import Generation
from schemas.errors import StepError
from schemas.use import FunctionUse
from tasks.context import Context


def rows(*names):
    prompt = [{"role": "user", "content": "go"}]
    return [
        {"id": name, "prompt": prompt, "answer": name, "family": "letters", "metadata": '{"own": 1}'} for name in names
    ]


class Played:
    """Each turn of one letter earns a half, and the third ends; any other turn ends at once."""

    def __init__(self):
        self.turns = 0

    def step(self, action):
        self.turns += 1
        good = len(action) == 1
        return Outcome(f"turn {self.turns}", not good or self.turns == 3, 0.5 if good else 0.0)


class Environment:
    """Begins it."""

    def begin(self, row, seed):
        return Played()


class Speaker:
    """An engine that says `a` in every turn, and in the rows of `talkative` two letters in turn `until`."""

    def __init__(self, policy, talks=(), until=1):
        self.tokenizer, self.talks, self.until, self.asked, self.seeds = policy.tokenizer, set(talks), until, [], []

    def generate(self, requests, sampling):
        self.asked.append(len(requests))
        made = []
        for request in requests:
            self.seeds.append(request.seed)
            turns = re.findall("<assistant>", self.tokenizer.decode(request.prompt_ids))
            odd = request.seed in self.talks or (self.talks == {"all"} and len(turns) > self.until)
            ids = self.tokenizer.encode("ab" if odd else "a", add_special_tokens=False)
            made.append([Generation([*ids, self.tokenizer.eos_token_id], [0.0] * (len(ids) + 1), "stop")])
        return made


@pytest.fixture
def play(tiny_policy_folder, tmp_path, monkeypatch):
    """Play rows with an engine; return measures, both sets and the engine."""

    def make(chosen, talks=(), until=1, **options):
        engines = []
        monkeypatch.setattr(
            flywheel, "Engine", lambda policy: engines.append(Speaker(policy, talks, until)) or engines[-1]
        )
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "prompts").mkdir(parents=True)
        write_rows(folder / "prompts", "prompts", chosen)
        context = Context(
            {"model": tiny_policy_folder, "prompts": folder / "prompts"}, folder, folder / "checkpoints", seed=1
        )
        own = {"use": "learning.problems.flywheel:play_and_route", "env": {"use": f"{__name__}:Environment"}}
        measured = bind(FunctionUse.model_validate(own | options))(context)
        return measured, *(read_rows(context.output(name), "chat") for name in ("passed", "failed")), engines[0]

    return make


def test_episodes_are_whole_chats_with_what_they_earn(play):
    measured, passed, failed, engine = play(rows("x", "y"), n=2, max_completion_length=4)
    assert measured == {"traces": 4, "solved": 1.0}
    assert engine.asked == [4, 4, 4]
    assert len(set(engine.seeds)) == 12  # every turn of every episode has a random stream of its own
    assert [row["id"] for row in passed] == ["x.0", "x.1", "y.2", "y.3"]
    for row in passed:
        assert json.loads(row["metadata"]) == {"own": 1, "reward": 1.5}
        assert [(m["role"], m["content"]) for m in row["completion"]] == [
            ("assistant", "a"),
            ("user", "turn 1"),
            ("assistant", "a"),
            ("user", "turn 2"),
            ("assistant", "a"),
        ]
    # None failed: the lower tier has one that earned least.
    assert [row["id"] for row in failed] == ["x.0"]


def test_an_episode_that_ends_early_is_not_asked_again_and_fails(play):
    measured, passed, failed, engine = play(rows("x", "y"), talks={"all"}, until=1, max_completion_length=4)
    assert measured == {"traces": 2, "solved": 0.0}
    assert engine.asked == [2, 2]
    assert {json.loads(row["metadata"])["reward"] for row in failed} == {0.5}
    assert len(passed) == 1  # none passed: the best of them
    measured, passed, _, engine = play(rows("x", "y"), max_completion_length=4, at_least=2.0)
    assert (measured["solved"], len(passed)) == (0.0, 1)


def trace(number, earned):
    return Trace({"id": str(number)}, Played(), number, earned=earned)


def test_routes_by_what_was_earned():
    traces = [trace(0, 0.5), trace(1, 1.0), trace(2, 0.999), trace(3, 2.0)]
    passed, failed = route(traces, 1.0)
    assert ([t.number for t in passed], [t.number for t in failed]) == ([1, 3], [0, 2])
    passed, failed = route(traces, 3.0)
    assert ([t.number for t in passed], len(failed)) == ([3], 4)
    passed, failed = route(traces, 0.1)
    assert (len(passed), [t.number for t in failed]) == (4, [0])


def test_rewards_of_turns_add_up():
    one = trace(0, 0.0)
    for text in ("a", "b", "cd"):
        play_turn(one, text)
    assert (one.earned, one.done, len(one.messages)) == (1.0, True, 6)


def test_a_problem_that_leaves_no_room_is_refused(play, tiny_policy):
    size = tiny_policy.max_length - len(encode_prompt(tiny_policy.tokenizer, rows("x")[0]["prompt"]))
    with pytest.raises(StepError, match=f"problem x and a turn of {size + 1} tokens are too long"):
        play(rows("x"), max_completion_length=size + 1)

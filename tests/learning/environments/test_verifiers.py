"""Environments of the library verifiers: its own loop is the reference for what an episode is and earns."""

import asyncio
import json
import signal
import sys

import pytest
import verifiers
from openai.types.chat import ChatCompletion

from learning.environments.lookup_environment import build_environment
from learning.environments.tool_calls import ToolCall, parse_tool_calls
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse

HIDDEN = {
    "use": "verifiers",
    "load": "learning.toy_tasks.hidden_number:load_environment",
    "kwargs": {"size": 9, "tests": 5},
}
CODE = """
import asyncio

import datasets
import verifiers

ROWS = datasets.Dataset.from_list([{"question": f"{i}+{i}", "answer": str(2 * i), "info": {"n": i}} for i in range(8)])


async def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def long(completion):
    return len(completion[-1]["content"])


def make(**options):
    rubric = verifiers.Rubric(funcs=[right, long], weights=[1.0, 0.25])
    return verifiers.SingleTurnEnv(dataset=ROWS, system_prompt="Add.", rubric=rubric, **options)


def add(a: int, b: int) -> int:
    'Add two numbers.'
    return a + b


def with_tools():
    return verifiers.ToolEnv(dataset=ROWS, tools=[add], rubric=verifiers.Rubric(funcs=[right]))


class Told(verifiers.MultiTurnEnv):
    async def setup_state(self, state):
        state["seen"] = []
        return state

    async def env_response(self, messages, state):
        text = messages[-1]["content"]
        if text == "sleep":
            await asyncio.sleep(60)
        if text == "break":
            raise KeyError("broken")
        if text == "fail":
            raise verifiers.Error("an error of the library")
        if text == "change":
            messages[0]["content"] = "something else"
        state["seen"].append(text)
        return [{"role": "user", "content": f"{len(state['seen'])}: {text}"}, {"role": "user", "content": "go on"}]

    @verifiers.stop
    async def stopped(self, state):
        return "stop" in state["seen"]


async def seen(state):
    return len(state["seen"])


def told():
    return Told(dataset=ROWS, rubric=verifiers.Rubric(funcs=[seen]))


def of_groups(completions):
    return [0.0] * len(completions)


def grouped():
    return verifiers.SingleTurnEnv(dataset=ROWS, rubric=verifiers.Rubric(funcs=[of_groups]))


def nothing():
    return "no environment"
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "their_environments.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name="make", max_turns=8, **options):
        use = {"use": "verifiers", "load": f"their_environments:{name}", "max_turns": max_turns, **options}
        return build_environment(EnvUse.model_validate(use), {})

    yield make
    sys.modules.pop("their_environments", None)


def play(environment, turns, place=0):
    """The outcomes of an episode with these turns."""
    row = environment.list_starts(4, "train", 0)[place]
    episode = environment.begin(row, 0)
    outcomes = []
    for turn in turns:
        outcomes.append(episode.step(turn))
        if outcomes[-1].done:
            break
    return row, outcomes


class Server:
    """What the library's own loop asks instead of a server: the turns, one after the other."""

    def __init__(self, turns):
        self.turns, self.seen = list(turns), []

    async def respond(self, state, prompt, *more, **how):
        self.seen.append([message["content"] for message in prompt])
        content, calls = parse_tool_calls(self.turns.pop(0))
        message = {"role": "assistant", "content": content}
        if calls:
            functions = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in calls]
            message["tool_calls"] = [{"id": "c", "type": "function", "function": f} for f in functions]
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
        whole = {"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return ChatCompletion.model_validate(whole)


def play_by_the_library(environment, row, turns):
    """Reward and observations of the library's own `rollout` and `score_rollout`."""
    server, inner = Server(turns), environment.inner
    inner.get_model_response = server.respond

    async def run():
        entry = json.loads(row["metadata"])["entry"]
        state = await inner.rollout(entry, None, "m")
        await inner.rubric.score_rollout(state)
        return state

    state = asyncio.run(run())
    return state["reward"], server.seen


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("make", ["0"]),
        ("make", ["seven"]),
        ("told", ["a", "b", "stop", "never"]),
        ("told", ["a", "fail", "never"]),
        ("with_tools", ['I call <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>', "0"]),
        ("with_tools", ['<tool_call>{"name": "sub", "arguments": {}}</tool_call>', "x"]),
    ],
)
def test_an_episode_is_that_of_the_librarys_own_loop(make, name, turns):
    environment = make(name)
    row, outcomes = play(environment, turns)
    reward, seen = play_by_the_library(environment, row, turns)
    assert outcomes[-1].done
    assert outcomes[-1].reward == pytest.approx(reward)
    assert [message["content"] for message in row["prompt"]] == seen[0]
    before = len(seen[0])
    for outcome, prompt in zip(outcomes, seen[1:], strict=False):
        assert outcome.observation == "\n".join(prompt[before + 1 :])
        before = len(prompt)
    assert len(outcomes) == len(seen)


def test_tools_run_and_are_columns_of_the_row(make):
    row, outcomes = play(
        make("with_tools"), ['<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>', "x"]
    )
    assert [o.observation for o in outcomes] == ["5", ""]
    assert row["tools"][0]["function"]["name"] == "add"


def test_the_stages_turn_limit_ends_and_scores_an_episode(make):
    _, outcomes = play(make("told", max_turns=3), ["a", "b", "c", "d"])
    assert [o.done for o in outcomes] == [False, False, True]
    assert outcomes[-1].reward == 2  # the third turn has no answer


def test_one_function_of_the_rubric_can_be_the_reward(make):
    assert play(make(), ["seven"])[1][-1].reward == 5 * 0.25
    assert play(make(score="long"), ["seven"])[1][-1].reward == 5


def test_a_step_that_is_slow_or_breaks_ends_its_episode_alone(make):
    environment = make("told", seconds=0.2)
    slow, broken = (play(environment, [turn])[1][0] for turn in ("sleep", "break"))
    assert (slow.done, slow.ok, slow.observation) == (True, False, "error: no answer within 0.2 seconds")
    assert (broken.done, broken.ok, broken.observation) == (True, False, "error: KeyError: 'broken'")


def test_a_history_that_changes_is_refused(make):
    with pytest.raises(StepError, match="told changes earlier turns of the conversation"):
        play(make("told"), ["change", "a"])


def test_data_sets_are_split_and_tests_are_never_training_rows(make):
    use = {"use": "starts", "env": HIDDEN}
    rows = {s: bind(ProblemsUse(**use, size=n, split=s))() for s, n in (("train", 9), ("test", 5))}
    prompts = {split: {row["prompt"][0]["content"] for row in made} for split, made in rows.items()}
    assert (len(prompts["train"]), len(prompts["test"])) == (9, 5)
    assert not prompts["train"] & prompts["test"]
    with pytest.raises(StepError, match="has no data set for evaluation; set `held_out"):
        make().list_starts(1, "test", 0)
    environment = make(held_out=0.5)
    split = {s: environment._read_entries(s) for s in ("train", "test")}
    assert all(split.values())
    assert sorted(e["answer"] for made in split.values() for e in made) == sorted(str(2 * i) for i in range(8))
    with pytest.raises(StepError, match="99 are asked for"):
        environment.list_starts(99, "train", 0)


def test_the_processs_signal_handlers_stay(make):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    make()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert verifiers.envs.environment.signal is signal


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "their_environments:nothing returns str"),
        ("grouped", {}, "`of_groups` scores groups of samples"),
        ("make", {"score": "wrong"}, "its rubric has no `wrong`; there are right, long"),
        ("make", {"kwargs": {"system_prompt": "x"}}, "their_environments:make: TypeError"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(make, name, options, message):
    with pytest.raises(StepError, match=message):
        make(name, **options)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('a <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', "a", [ToolCall("f", {"x": 1})]),
        ('<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}', "", [ToolCall("f", {}), ToolCall("g", {})]),
        ("<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
        ('<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', []),
        ("<tool_call>" * 99, "<tool_call>" * 99, []),
        ("<tool_call>" + "[" * 9999, "<tool_call>" + "[" * 9999, []),
        ("no call", "no call", []),
    ],
)
def test_calls_in_the_text_of_a_turn(text, content, calls):
    assert parse_tool_calls(text) == (content, calls)

"""Calls of tools as turns of a model: what is a call, what is answered, and that nothing it writes ends the episode."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from learning.environments.tools import Environment
from learning.lookup import bind
from learning.toy_tasks.almanac import almanac
from schemas.errors import StepError
from schemas.use import ToolUse

ROW = {"id": "1", "prompt": [{"role": "user", "content": "?"}], "metadata": "{}"}
HERE = """
def twice(query):
    return query + query

def dice(query, row, rng, *, sides: int = 6):
    return f"{row['id']} {rng.integers(sides)}"

def broken(query):
    raise KeyError(query)

def mute(query):
    raise RuntimeError

def missing(query):
    from schemas.errors import StepError
    raise StepError("this machine has none")
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes an environment with tools of a module outside the house, beside a calculator."""
    (tmp_path / "outside.py").write_text(HERE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(*names, **options):
        uses = [{"use": f"outside:{name}"} if isinstance(name, str) else name for name in names]
        return Environment(tools=[bind(ToolUse.model_validate(use)) for use in ["calculator", *uses]], **options)

    yield make
    sys.modules.pop("outside", None)


def said(environment, *turns, seed=3):
    """What each turn of an episode comes to."""
    episode = environment.begin(ROW, seed)
    return [episode.step(turn) for turn in turns]


@pytest.mark.parametrize(
    "turn", ["calculator: 417*23", " calculator:417*23\n", "calculator :417*23", "calculator:\n417*23"]
)
def test_a_name_and_a_colon_is_a_call(made, turn):
    (outcome,) = said(made(), turn)
    want = ("9591", True) if " :" not in turn else ("write calculator: and what is asked", False)
    assert (outcome.observation, outcome.ok, outcome.done, outcome.reward) == (*want, False, 0.0)


@pytest.mark.parametrize("turn", ["9591", "it is 9591", "", "12:30", "-1", "calculators", "417*23 calculator: 1"])
def test_what_is_no_call_is_the_answer(made, turn):
    (outcome,) = said(made(), turn)
    assert outcome.done
    assert outcome.ok


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ("calculater: 1+1", "no tool calculater; there are calculator, broken, mute"),
        ("calculator:", "write calculator: and what is asked"),
        ("calculator 1+1", "write calculator: and what is asked"),
        ("calculator: one", "error: write numbers, + - * / // % ** and brackets"),
        ("calculator: 1/0", "error: division by zero"),
        ("broken: x", "error: 'x'"),
        ("mute: x", "error: RuntimeError"),
    ],
)
def test_an_impossible_call_is_reported_and_the_episode_goes_on(made, turn, told):
    bad, good = said(made("broken", "mute"), turn, "calculator: 1+1")
    assert (bad.observation, bad.ok, bad.done) == (told, False, False)
    assert (good.observation, good.ok) == ("2", True)


def test_what_the_machine_lacks_ends_the_step(made):
    with pytest.raises(StepError, match="this machine has none"):
        said(made("missing"), "missing: x")


def test_results_are_capped(made):
    environment = made("twice", longest=10)
    assert [o.observation for o in said(environment, "twice: abcde", "twice: abcdef")] == [
        "abcdeabcde",
        "abcdefabcd...",
    ]


def test_a_tool_draws_from_the_episodes_own_numbers(made):
    environment = made({"use": "outside:dice", "sides": 1000})
    first = [o.observation for o in said(environment, "dice: 1", "dice: 1", "dice: 1", seed=3)]
    assert [o.observation for o in said(environment, "dice: 1", "dice: 1", "dice: 1", seed=3)] == first
    assert len(set(first)) == 3
    assert [o.observation for o in said(environment, "dice: 1", seed=4)] != first[:1]
    assert all(text.startswith("1 ") for text in first)


def test_a_stated_latency_is_the_turns_and_only_of_the_tool_it_is_stated_for(made):
    called, other, answer = said(made("twice", latency={"twice": 2.5}), "twice: a", "calculator: 1", "done")
    assert (called.seconds, other.seconds, answer.seconds) == (2.5, None, None)


def test_a_form_of_ones_own(made):
    environment = made(call=r".*<(\w+)>(.*)</\1>\s*")
    outcome, answer = said(environment, "I add: <calculator>1+1</calculator>", "calculated: 2")
    assert (outcome.observation, answer.done) == ("2", True)


@pytest.mark.parametrize(
    ("names", "options", "why"),
    [
        (["twice", "twice"], {}, "two tools are called twice"),
        ([], {"latency": {"serch": 1.0}}, "latency of serch"),
        ([], {"call": "("}, "call"),
        ([], {"call": r"(\w+)"}, "two groups"),
    ],
)
def test_wrong_options_of_a_recipe_are_reported(made, names, options, why):
    with pytest.raises(StepError, match=why):
        made(*names, **options)


def test_episodes_at_the_same_time_are_those_one_after_the_other():
    """Scripts of 60 problems, with all tools that need no sandbox, in eight threads."""
    environment = Environment(tools=[bind(ToolUse(use=name)) for name in ("calculator", "search", "sql")])
    rows = almanac(size=60, split="train", worlds=3)

    def heard(row):
        episode = environment.begin(row, 0)
        return [episode.step(turn) for turn in json.loads(row["metadata"])["script"]]

    alone = [heard(row) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(heard, rows)) == alone
    assert all(outcome.ok for outcomes in alone for outcome in outcomes)
    assert [outcomes[-2].observation for outcomes in alone] == [row["answer"] for row in rows]

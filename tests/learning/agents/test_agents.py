"""Agents: parts apart on disk, tools that somebody wrote in the sandbox alone, drafts that are not taken on trust."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from learning.agents import made
from learning.agents.acting import load_env, load_rows
from learning.agents.authors import templates
from learning.agents.drafting import Drafting
from learning.agents.environment import Environment
from learning.agents.folder import load_agent, read_agent, write_agent, write_practised
from learning.agents.made import call_made_tool_, list_failures
from learning.agents.templates import TEMPLATES
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Outcome
from learning.lookup import Bound, bind
from learning.sandbox.run import available
from schemas.agent import Agent, AuthorUse, MadeTool
from schemas.errors import StepError
from schemas.references import PromptsRef
from schemas.use import EnvUse

ROW = {"id": "r", "metadata": json.dumps({"documents": ["4-2 bolt", "3-1 nut"]})}
sandboxed = pytest.mark.skipif(available() is not None, reason=str(available()))


def tool(code, *tests, name="twice", **more):
    cases = [{"query": query, "answer": answer} for query, answer in tests or [("a", "aa")]]
    return MadeTool.model_validate({"name": name, "code": code, "tests": cases, **more})


class Plain:
    """An environment without tools."""

    def __init__(self, *, word: str = "so"):
        self.word = word

    def begin(self, row, seed):
        word = self.word

        class Played:
            def step(self, action):
                return Outcome(word * 3)

        return Played()


def noted(query: str, *, rows: PromptsRef) -> str:
    """A tool that reads what an artifact says."""
    return f"{query} {(Path(rows) / 'x').read_text()}"


def agent(**said):
    return Agent.model_validate({"environment": {"use": "tools"}, "toolkit": ["calculator", "search"], **said})


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_another_environment_changes_the_file_of_the_environment_alone(tmp_path):
    shared = {"context": {"system": "s", "experiences": 3}, "experiences": ["e"]}
    for name, environment in (("a", {"use": "tools", "max_turns": 3}), ("b", f"{__name__}:Plain")):
        (tmp_path / name).mkdir()
        write_agent(tmp_path / name, agent(environment=environment, **shared))
    one, other = files(tmp_path / "a"), files(tmp_path / "b")
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == ["environment.json"]
    # One that takes no tools plays without them; the toolkit stands there for the next.
    assert Environment(folder=str(tmp_path / "b")).begin(ROW, 0).step("calculator: 1").observation == "sososo"
    assert read_agent(tmp_path / "b").toolkit == read_agent(tmp_path / "a").toolkit


def test_practice_changes_the_file_of_the_experiences_alone(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "x").write_text("x")
    write_agent(tmp_path / "a", agent(), {"toolkit.0.rows": tmp_path / "corpus", "author.x": tmp_path / "corpus"})
    write_practised(tmp_path / "b", tmp_path / "a", agent(experiences=["new"]))
    one, other = files(tmp_path / "a"), files(tmp_path / "b")
    assert [name for name in one if one[name] != other[name]] == ["experiences.json"]
    assert "inputs/toolkit.0.rows/x" in one
    assert not any("author" in name for name in one)
    assert read_agent(tmp_path / "b").experiences == ["new"]
    with pytest.raises(StepError, match="not an agent"):
        read_agent(tmp_path / "corpus")
    assert load_agent(None) == Agent()


def test_what_a_tool_refers_to_goes_with_the_agent(tmp_path):
    for name in ("a", "corpus"):
        (tmp_path / name).mkdir()
    (tmp_path / "corpus" / "x").write_text("seen")
    own = {"use": f"{__name__}:noted", "rows": "facts"}
    write_agent(tmp_path / "a", agent(toolkit=["calculator", own]), {"toolkit.1.rows": tmp_path / "corpus"})
    shutil.rmtree(tmp_path / "corpus")
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    episode = Environment(folder=str(tmp_path / "elsewhere")).begin(ROW, 0)
    assert episode.step("noted: q").observation == "q seen"


@sandboxed
def test_stages_act_with_the_agents_environment_tools_and_context(tmp_path):
    reverse = tool("def reverse(query):\n    return query[::-1]\n", ("ab", "ba"), name="reverse")
    write_agent(tmp_path, agent(made=[reverse], context={"system": "hi", "observation_length": 5}))
    use = load_env(tmp_path, None)
    assert (use.max_turns, use.order) == (8, "each")
    episode = build_environment(use, {}).begin(ROW, 0)
    asked = {"calculator: 300*400": "12000", "search: 4-2": "4-2 b", "reverse: abcdefg": "gfedc", "nothing: 1": "no to"}
    assert {action: episode.step(action).observation for action in asked} == asked
    assert episode.step("an answer").done
    assert load_rows(tmp_path, [{"prompt": [{"role": "user", "content": "q"}]}])[0]["prompt"][0]["content"] == "hi"
    # Without an agent the stage's own `env` and rows stand.
    assert load_env(None, EnvUse(use="guess")) == EnvUse(use="guess")
    assert load_rows(None, [ROW]) == [ROW]


@sandboxed
def test_a_tool_that_somebody_wrote_runs_in_the_sandbox_alone(tmp_path, monkeypatch):
    runs = []
    really = made.run
    monkeypatch.setattr(made, "run", lambda code, **how: runs.append(how["stdin"]) or really(code, **how))
    monkeypatch.chdir(tmp_path)
    code = f"""
import os
print("loud", os.getpid())
try:
    open({str(tmp_path / "seen")!r}, "w").write("x")
except OSError:
    pass
os.environ["LEFT"] = "1"
def twice(query):
    print("louder")
    return query + query + (" " + str(os.getpid()) if query == "who" else "")
"""
    made_tool = tool(code)
    assert list_failures(made_tool) == []
    # What it prints is no answer, what it does stays in there, and the call comes from another process.
    assert call_made_tool_("ab", tool=made_tool) == "abab"
    assert call_made_tool_("who", tool=made_tool).split()[1] != str(os.getpid())
    assert "LEFT" not in os.environ
    assert list(tmp_path.iterdir()) == []
    # A query is asked once; another one is another call.
    assert call_made_tool_("ab", tool=made_tool) == "abab"
    assert runs == ["a", "ab", "who"]


@sandboxed
@pytest.mark.parametrize(
    ("code", "more", "why"),
    [
        ("def twice(query):\n    return query\n", {}, r"twice\('a'\) gives 'a', its test wants 'aa'"),
        ("def twice(query):\n    return 1 / 0\n", {}, "fails: ZeroDivisionError: division by zero"),
        ("def other(query):\n    return query * 2\n", {}, "fails: KeyError: 'twice'"),
        ("def twice(query)\n", {}, "fails: SyntaxError"),
        ("import sys\nsys.stdout.write('aa')\nsys.exit(0)\n", {}, r"gives '', its test wants 'aa'"),
        ("def twice(query):\n    while True: pass\n", {"seconds": 0.5}, "fails: "),
        ("def twice(query):\n    return 'a' * 10**9\n", {"memory_mb": 96}, "fails: "),
        ("import socket\ndef twice(q):\n    socket.socket()\n    return q * 2\n", {}, "fails: "),
    ],
)
def test_a_tool_that_fails_its_test_says_why(code, more, why):
    (message,) = list_failures(tool(code, **more))
    assert re.search(why, message), message


def author(*drafts):
    """Writes one draft after the other, and what it was told in between."""
    requests = []

    def write(task, toolkit, refused, attempt):
        requests.append((task, sorted(toolkit), [(entry["name"], entry["reasons"]) for entry in refused], attempt))
        return drafts[attempt]

    return Bound("write", write, {}), requests


GOOD = {"name": "twice", "code": "def twice(query):\n    return query * 2\n", "tests": [{"query": "a", "answer": "aa"}]}
BROKEN = {
    **GOOD,
    "name": "thrice",
    "code": "def thrice(query):\n    return query * 2\n",
    "tests": [{"query": "a", "answer": "aaa"}],
}


@sandboxed
def test_a_planted_broken_tool_is_refused_and_its_author_gets_the_reason():
    write, requests = author({"tools": [GOOD, BROKEN]}, {"tools": [BROKEN]})
    drafting = Drafting(agent())
    draft = drafting.written(write, "a task", 2, {})
    assert [one.name for one in draft.made] == ["twice"]
    why = "thrice('a') gives 'aa', its test wants 'aaa'"
    lines = [
        (line["what"], line["name"], line["attempt"], line["accepted"], line["reasons"]) for line in drafting.lines
    ]
    assert lines == [
        ("draft", "draft", 0, True, []),
        ("tool", "twice", 0, True, []),
        ("tool", "thrice", 0, False, [why]),
        ("draft", "draft", 1, True, []),
        ("tool", "thrice", 1, False, [why]),
    ]
    assert requests == [
        ("a task", ["calculator", "search"], [], 0),
        ("a task", ["calculator", "search"], [("thrice", [why])], 1),
    ]


@sandboxed
def test_drafts_are_held_to_the_schema_and_to_the_tools_there_are():
    drafts = (
        {"tools": [], "contxt": {}},
        {"context": {"experiences": -1}},
        {"toolkit": ["python"]},
        "no map",
        {"toolkit": ["search"], "context": {"system": "s"}, "tools": [{**GOOD, "name": "search"}, GOOD, {"name": "x"}]},
    )
    write, requests = author(*drafts)
    drafting = Drafting(agent(context={"system": "before", "experiences": 5}))
    draft = drafting.written(write, "t", 5, {})
    reasons = [line["reasons"] for line in drafting.lines]
    assert reasons[0] == ["contxt: Extra inputs are not permitted"]
    assert reasons[1][0].startswith("context.experiences: ")
    assert reasons[2] == ["toolkit: no tool python is given; there are calculator, search"]
    assert "dictionary" in reasons[3][0]
    assert reasons[4:7] == [[], ["there is a tool called search already"], []]
    assert {reason.split(":")[0] for reason in reasons[7]} == {"code", "tests"}
    # What the author leaves out stays: how many experiences are shown.
    assert [use.use for use in draft.toolkit] == ["search"]
    assert (draft.context.system, draft.context.experiences) == ("s", 5)
    assert requests[4][2] == [("draft", reasons[3])]


@sandboxed
def test_an_author_of_whom_nothing_is_fit_fails_with_the_reasons():
    with pytest.raises(StepError, match=r"nothing it wrote in 2 attempts was fit to use: thrice\('a'\) gives 'aa'"):
        Drafting(agent()).written(author({"tools": [BROKEN]}, {"tools": [BROKEN]})[0], "t", 2, {})
    with pytest.raises(StepError, match=r"was fit to use: .*not permitted"):
        Drafting(agent()).written(author({"x": 1})[0], "t", 1, {})
    with pytest.raises(StepError, match="made tool thrice fails its tests"):
        Drafting(agent()).proven([MadeTool.model_validate(BROKEN)])


@sandboxed
@pytest.mark.parametrize("one", TEMPLATES, ids=lambda one: one.name)
def test_each_template_passes_its_tests_and_its_slip_does_not(one):
    for careless in (False, True):
        written = tool(one.code(careless), *one.tests, name=one.name)
        assert bool(list_failures(written)) == careless
    assert one.slip[0] in one.body


def test_templates_write_what_the_task_says_and_again_what_was_refused():
    use = AuthorUse(use="templates", system="{task}\n{tools}")
    supplies = {"task": "Turn texts backward", "toolkit": {"count": "c"}, "refused": [], "attempt": 0, "seed": 1}
    draft = bind(use).ask(0, supplies)
    assert [one["name"] for one in draft["tools"]] == ["reverse"]
    assert draft["context"]["system"] == "Turn texts backward\ncount: c\nreverse: The text backward."
    again = templates("sort and reverse", {}, [{"name": "arrange"}], 1, np.random.default_rng(0), error_rate=1.0)
    assert [one["name"] for one in again["tools"]] == ["arrange"]
    assert "reversed(" in again["tools"][0]["code"]

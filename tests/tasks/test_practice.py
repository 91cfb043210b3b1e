"""kind: practice — experiences come from groups that differ, stand in the next prompts, and no weight changes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from learning.agents.folder import read_agent, write_agent
from learning.data.rows import write_rows
from learning.sandbox.run import available
from learning.toy_tasks.customs import customs
from schemas.agent import Agent
from schemas.errors import StepError
from schemas.stages.practice import Practice
from tasks.context import Context
from tasks.practice import run
from tests import clerk

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))
RULE = {"use": "first_difference", "action": "^[a-z]+(?=:)|[a-z]+$", "template": "step {step}: {best}"}
REVERSE = {
    "name": "reverse",
    "code": "def reverse(query):\n    return query[::-1]\n",
    "tests": [{"query": "ab", "answer": "ba"}],
}


@pytest.fixture(autouse=True)
def fresh():
    clerk.PROMPTS.clear()
    clerk.LEFT[0] = None
    yield
    clerk.LEFT[0] = None


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    agent = Agent(environment={"use": "tools", "max_turns": 3}, toolkit=["calculator", "search"], made=[REVERSE])
    for name in ("agent", "prompts"):
        (tmp_path / name).mkdir()
    write_agent(tmp_path / "agent", agent)
    write_rows(tmp_path / "prompts", "prompts", customs(size=6, split="train"))
    return {"model": tiny_policy_folder, "prompts": tmp_path / "prompts", "agent": tmp_path / "agent"}


def stage_of(**settings):
    how = {"num_generations": 9, "generation_batch_size": 18, "max_completion_length": 64, "extractor": RULE}
    return Practice.model_validate(
        {
            "kind": "practice",
            "model": "m",
            "prompts": "p",
            "agent": "a",
            "max_steps": 3,
            "engine": "tests.clerk:Scripted",
            **how,
            **settings,
        }
    )


def rounds(context):
    lines = (context.folder / "outputs" / "rounds" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_difference_of_best_and_worst_enters_the_next_prompt_and_equal_groups_add_nothing(at, inputs, training):
    before = {path.name: path.read_bytes() for path in inputs["model"].iterdir()}
    context = at("whole")
    result = run(stage_of(), context)
    groups = rounds(context)
    # Round 0: of nine samples the third alone is right; the ninth called the same tool and closed otherwise.
    # Round 1: every sample closes rightly, a third calls the right tool. Round 2: all are right, so nothing is learnt.
    assert [(g["round"], g["differs"], g["learnt"]) for g in groups] == [
        (0, True, ["step 2: done"]),
        (0, True, []),
        (1, True, ["step 1: search"]),
        (1, True, []),
        (2, False, []),
        (2, False, []),
    ]
    assert [line["reward"] for line in training.curve(context)] == pytest.approx([1 / 9, 1 / 3, 1.0])
    # The next prompt holds what is known by then, the oldest first.
    systems = [g["prompt"][0]["content"] if g["prompt"][0]["role"] == "system" else None for g in groups[::2]]
    assert systems == [None, "step 2: done", "step 2: done\nstep 1: search"]
    assert sum("<system>step 2: done\nstep 1: search<eos>" in prompt for prompt in clerk.PROMPTS) == 2 * 18
    assert result.metrics["experiences"] == 2
    assert result.metrics["reward_first"] == pytest.approx(1 / 9)
    # The agent differs in its experiences alone, the model in nothing.
    made = context.folder / "outputs" / "agent"
    assert read_agent(made).experiences == ["step 2: done", "step 1: search"]
    for part in ("agent", "environment", "toolkit", "made", "context"):
        assert (made / f"{part}.json").read_bytes() == (inputs["agent"] / f"{part}.json").read_bytes()
    assert {path.name: path.read_bytes() for path in inputs["model"].iterdir()} == before


def test_a_killed_practice_resumes_bit_identical(at, inputs, training):
    whole = at("whole")
    result = run(stage_of(), whole)
    total = len(clerk.PROMPTS)
    clerk.PROMPTS.clear()
    for attempt, left in enumerate((20, 40, 60)):
        clerk.LEFT[0] = left
        with pytest.raises(clerk.Killed):
            run(stage_of(), at("broken", attempt))
    clerk.LEFT[0] = None
    last = at("broken", 3)
    assert run(stage_of(), last) == result
    assert training.files(last) == training.files(whole)
    assert training.curve(last) == training.curve(whole)
    # A round is 36 turns; one that is whole is not sampled again.
    assert len(clerk.PROMPTS) == total + 20 + (40 - 36) + (60 - 36)


KILLED = """
import os, sys
from pathlib import Path
from tests import clerk
from tests.tasks.test_practice import stage_of
from tasks.context import Context
from tasks.practice import run

class Gone(list):
    def append(self, prompt):
        if len(self) == 45:
            os.kill(os.getpid(), 9)
        super().append(prompt)

clerk.PROMPTS = Gone()
root = Path(sys.argv[1])
inputs = {"model": root / "policy", "prompts": root / "prompts", "agent": root / "agent"}
run(stage_of(), Context(inputs, root / "killed-0", root / "killed-checkpoints", seed=3))
"""


@pytest.mark.slow
def test_a_process_killed_in_round_1_resumes_bit_identical(at, inputs, training, tmp_path):
    whole = at("whole")
    result = run(stage_of(), whole)
    at("killed")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed-checkpoints").glob("round-*.json"))) == 1
    last = at("killed", 1)
    assert run(stage_of(), last) == result
    assert training.files(last) == training.files(whole)


def test_a_margin_and_a_limit_hold(at, inputs):
    assert run(stage_of(min_margin=1.0), at("wide")).metrics["learnt"] == 0
    context = at("one")
    run(stage_of(max_experiences=1, max_steps=2), context)
    assert read_agent(context.folder / "outputs" / "agent").experiences == ["step 1: search"]


def test_without_an_agent_a_completion_is_the_answer(at, inputs):
    """Scripted, nine samples of one turn call three tools three times each; one of them is scored."""
    context = at("alone")
    ports = {name: inputs[name] for name in ("model", "prompts")}
    own = {"agent": None, "rewards": [{"use": "formats.matches", "pattern": "search: .*"}], "max_steps": 2}
    plain = Context(ports, context.folder, context.checkpoints, seed=3)
    result = run(stage_of(**own), plain)
    assert (result.metrics["reward_first"], result.metrics["reward"]) == (pytest.approx(1 / 3), 1.0)
    made = read_agent(context.folder / "outputs" / "agent")
    assert made == Agent(experiences=["step 1: search"])


def test_a_user_extractor_must_return_what_it_declares(at, inputs, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("def wrong(experiences):\n    return 'one'\n")
    with pytest.raises(StepError, match=r"extractor mine:wrong: it must return the list of experiences"):
        run(stage_of(extractor="mine:wrong"), at("own"))


def test_experiences_that_leave_no_room_are_named_in_the_error(at, inputs, tmp_path, monkeypatch):
    agent = read_agent(inputs["agent"]).model_copy(update={"experiences": ["x" * 100]})
    (tmp_path / "full").mkdir()
    write_agent(tmp_path / "full", agent)
    context = at("full")
    with pytest.raises(StepError, match=r"prompts contain 1 of 1 experiences.*context\.experiences"):
        run(stage_of(), Context({**inputs, "agent": tmp_path / "full"}, context.folder, context.checkpoints, seed=3))


def test_the_model_itself_may_say_what_it_learnt(at, inputs):
    """Scripted, it answers a question of one message as it calls a tool: with its first words and the question."""
    context = at("asked")
    requests = {"use": "reflection", "order": "{high} {low}", "max_completion_length": 32}
    run(stage_of(max_steps=1, extractor=requests), context)
    assert read_agent(context.folder / "outputs" / "agent").experiences == ["calculator: 1 0"]

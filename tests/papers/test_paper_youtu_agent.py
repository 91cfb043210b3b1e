"""Youtu-Agent: practice changes the experiences and no weight, a group with equal rewards adds no experience, and
generated parts of an agent are used only if they pass the schema and their own tests in the sandbox.

Not shown: experiences and tools written by a large model; GAIA and WebWalkerQA; the 40% of speed.
"""

import json
from pathlib import Path

import pytest

from flows.planning.compile import compile_recipe
from learning.agents.folder import read_agent
from learning.agents.practising import extract_experiences
from learning.data.rows import write_rows
from learning.lookup import Bound
from learning.samples.sample import Sample
from learning.sandbox.run import available
from learning.toy_tasks.customs import customs
from lineage.digests import content_digest, folder_digests
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from tasks import agent as generation
from tasks import practice
from tasks.context import Context
from tests import clerk

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "youtu-agent.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))
BROKEN = {"name": "spell", "code": "def spell(query):\n    return query\n", "tests": [{"query": "ab", "answer": "a-b"}]}


@pytest.fixture(autouse=True)
def fresh():
    clerk.PROMPTS.clear()
    clerk.WEIGHTS.clear()


@pytest.fixture
def run(tmp_path):
    """Runs a stage of the recipe, with some keys changed; its folder of outputs and its result."""

    def run(task, name, inputs=None, seed=1, **changed):
        stage = type(STAGES[name]).model_validate(STAGES[name].model_dump() | changed)
        places = [tmp_path / f"{len(list(tmp_path.iterdir()))}-{what}" for what in (name, "checkpoints")]
        for place in places:
            place.mkdir()
        result = task.run(stage, Context(inputs or {}, *places, seed=seed))
        return places[0] / "outputs", result

    return run


@pytest.fixture
def inputs(run, tiny_policy_folder, tmp_path):
    """What `practised` gets; the model is one that nobody has trained."""
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts", "prompts", customs(size=6, split="train"))
    made, _ = run(generation, "clerk")
    return {"model": tiny_policy_folder, "prompts": tmp_path / "prompts", "agent": made / "agent"}


def plant(task, toolkit, refused, attempt):
    """A meta-agent that plants a broken tool beside a good one, and insists."""
    good = {
        "name": "double",
        "code": "def double(query):\n    return query * 2\n",
        "tests": [{"query": "ab", "answer": "abab"}],
    }
    return {"tools": [good, BROKEN] if attempt == 0 else [BROKEN]}


def test_the_experiences_change_the_next_prompt_holds_them_and_equal_rewards_add_nothing(run, inputs):
    """Nine scripted samples do everything there is to do once, so that every round has a closed form."""
    before = content_digest(folder_digests(inputs["model"]))
    how = {"num_generations": 9, "generation_batch_size": 18, "engine": "tests.clerk:Scripted", "max_steps": 4}
    out, result = run(practice, "practised", inputs, **how)
    assert content_digest(folder_digests(inputs["model"])) == before
    groups = [json.loads(line) for line in (out / "rounds" / "rounds.jsonl").read_text().splitlines()]
    learnt = [one for group in groups for one in group["learnt"]]
    assert learnt == read_agent(out / "agent").experiences == ["step 2: done", "step 1: search"]
    assert read_agent(inputs["agent"]).experiences == []
    shown = [[m["content"] for m in group["prompt"] if m["role"] == "system"] for group in groups[::2]]
    assert shown == [[], ["step 2: done"], ["step 2: done\nstep 1: search"], ["step 2: done\nstep 1: search"]]
    # What the engine was asked is what the record says.
    for texts in shown:
        opening = "".join(f"<system>{text}<eos>" for text in texts) + "<user>"
        assert any(prompt.startswith(opening) for prompt in clerk.PROMPTS)
    for group in groups:
        scores = {rollout["score"] for rollout in group["rollouts"]}
        assert group["differs"] == (len(scores) > 1)
        assert group["differs"] or not group["learnt"]
    assert not any(group["differs"] for group in groups if group["round"] >= 2)
    assert (result.metrics["reward_first"], result.metrics["reward"]) == (pytest.approx(1 / 9), 1.0)


def note(row, experiences):
    """An extractor that adds the problem's name."""
    return [*experiences, row["id"]]


def test_the_latest_experiences_are_kept(tiny_policy):
    most, extractor = STAGES["clerk"].context.experiences, Bound("note", note, {}, "extractor")
    samples = [
        Sample({"id": f"p{group}", "prompt": []}, group, "policy", [1], [5], [-0.5], "stop", "", reward=reward)
        for group in range(most + 2)
        for reward in (0.0, 1.0)
    ]
    how = {"tokenizer": tiny_policy.tokenizer, "min_margin": 0.0, "most": most}
    experiences, lines = extract_experiences(extractor, samples, ["old"], {"step": 0}, **how)
    assert experiences == [f"p{group}" for group in range(2, most + 2)]
    assert [line["dropped"] for line in lines] == [[], [], [], ["old"], ["p0"], ["p1"]]


def test_the_model_weighs_the_same_before_every_token_of_every_round(run, inputs):
    before = content_digest(folder_digests(inputs["model"]))
    sizes = {"num_generations": 2, "generation_batch_size": 4, "max_steps": 3, "max_completion_length": 12}
    parts = {"rewards": [f"{__name__}:ragged"], "extractor": {"use": "first_difference", "template": "{best}"}}
    out, result = run(practice, "practised", inputs, engine="tests.clerk:Weighed", **parts, **sizes)
    assert result.metrics["learnt"] > 1
    assert read_agent(out / "agent").experiences
    assert len(clerk.WEIGHTS) > 20
    assert len(set(clerk.WEIGHTS)) == 1
    assert content_digest(folder_digests(inputs["model"])) == before


def ragged(completions):
    """A reward that untrained samples differ in."""
    return [float(sum(map(ord, text)) % 5) for text in completions]


def test_a_generated_agent_fits_the_schema_and_its_tools_pass_their_tests(run):
    out, result = run(generation, "clerk")
    agent = read_agent(out / "agent")
    assert agent.tool_names == ["calculator", "search", "reverse"]
    assert agent.context.experiences == 4
    lines = [json.loads(line) for line in (out / "report" / "written.jsonl").read_text().splitlines()]
    tools = [line for line in lines if line["what"] == "tool"]
    # The templates slip with this seed: the first tool is refused, with what its test says; it is written again.
    assert [line["accepted"] for line in tools] == [False, True]
    assert tools[0]["reasons"][0] == "reverse('sun') gives 'us', its test wants 'nus'"
    assert result.metrics["tools_refused"] == 1
    assert result.metrics["tool_success"] == 0.5


def test_a_planted_broken_tool_is_refused_and_nothing_else_with_it(run):
    out, _ = run(generation, "clerk", author=f"{__name__}:plant", max_attempts=2)
    assert read_agent(out / "agent").tool_names == ["calculator", "search", "double"]
    lines = [json.loads(line) for line in (out / "report" / "written.jsonl").read_text().splitlines()]
    refused = [(line["name"], line["reasons"]) for line in lines if not line["accepted"]]
    assert refused == [("spell", ["spell('ab') gives 'ab', its test wants 'a-b'"])] * 2


def test_another_environment_leaves_toolkit_and_context_untouched(run):
    environments = STAGES["clerk"].environment, "guess"
    one, other = (run(generation, "clerk", environment=environment)[0] / "agent" for environment in environments)
    differ = [path.name for path in sorted(one.iterdir()) if path.read_bytes() != (other / path.name).read_bytes()]
    assert differ == ["environment.json"]


def test_practice_training_and_evaluation_act_as_one_agent(tmp_path):
    plan = compile_recipe(load_recipe(RECIPE, profile="tiny"), Layout(tmp_path))
    agents = {step.name: {i.port: i.steps for i in step.inputs if i.type == "agent"} for step in plan.steps}
    assert {name: ports for name, ports in agents.items() if ports} == {
        "practised": {"agent": ("clerk",)},
        "trained": {"agent": ("clerk",)},
        "report": {"agent": ("clerk",), "agents.practised": ("practised",)},
    }
    # Samplers go on while the trainer learns, at most an update behind.
    assert STAGES["trained"].rollout.use == "streamed"
    assert STAGES["trained"].rollout.options["max_staleness"] == 1

"""rl and evaluate act as an agent: its environment answers, its context stands before every problem."""

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from flows.planning.compile import compile_recipe
from learning.agents.folder import write_agent
from learning.data.rows import write_rows
from learning.toy_tasks.customs import customs
from lineage.layout import Layout
from schemas.agent import Agent
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from schemas.stages.evaluate import Evaluate
from schemas.stages.rl import Rl
from tasks import evaluate, rl
from tests import clerk

RL = {
    "kind": "rl",
    "model": "m",
    "prompts": "p",
    "rewards": ["environment.earned"],
    "advantage": ["center"],
    "ratio": "token",
    "policy_loss": "clipped",
    "loss_aggregation": "token_mean",
    "generation_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 30,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "save_steps": 1,
}
RECIPE = """
stages:
  base: {kind: init}
  exercises: {kind: synthesize, emit: prompts, problems: [{use: customs, split: train, size: 8}]}
  clerk:
    kind: agent
    environment: {use: %s}
    toolkit: [calculator, {use: search, top: %d}]
  trained:
    {kind: rl, algorithm: grpo, model: base, prompts: exercises, agent: clerk, rewards: [answers.exact], max_steps: 1,
     max_completion_length: 32}
"""


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    for name in ("agent", "knowing", "prompts"):
        (tmp_path / name).mkdir()
    settings = {"environment": {"use": "tools", "max_turns": 3}, "toolkit": ["calculator", "search"]}
    write_agent(tmp_path / "agent", Agent.model_validate(settings | {"context": {"system": "hi"}}))
    write_agent(
        tmp_path / "knowing", Agent.model_validate(settings | {"experiences": ["step 1: search", "step 2: done"]})
    )
    write_rows(tmp_path / "prompts", "prompts", customs(size=4, split="test"))
    return {"model": tiny_policy_folder, "prompts": tmp_path / "prompts", "agent": tmp_path / "agent"}


def test_rl_trains_in_the_agents_environment_under_its_context(at, inputs, training):
    context = at("whole")
    stage = Rl.model_validate(RL | {"agent": "a"})
    result = rl.run(stage, context)
    rows = pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()
    assert len(rows) == 8
    assert all(len(row["turns"]) in (1, 2, 3) for row in rows if row["status"] == "stop")
    shown = [sample["prompt"][0] for of in result.details["samples"].values() for sample in of]
    assert shown == [{"role": "system", "content": "hi"}] * len(shown)
    assert "turns" in result.metrics
    # Interrupted, it comes to the same bits; the folder of the agent is no part of what it learns.
    with pytest.raises(training.Stopped):
        rl.run(stage, at("broken", 0, training.stop_at(1)))
    last = at("broken", 1)
    assert rl.run(stage, last) == result
    assert training.files(last) == training.files(context)


def test_models_of_one_table_act_as_agents_of_their_own(at, inputs, tmp_path):
    ports = {
        "models.plain": inputs["model"],
        "models.knowing": inputs["model"],
        "prompts": inputs["prompts"],
        "agent": inputs["agent"],
        "agents.knowing": tmp_path / "knowing",
    }
    context = at("table")
    object.__setattr__(context, "inputs", ports)
    clerk.PROMPTS.clear()
    stage = Evaluate.model_validate(
        {
            "kind": "evaluate",
            "models": {"plain": "m", "knowing": "m"},
            "agent": "a",
            "agents": {"knowing": "k"},
            "prompts": "p",
            "engine": "tests.clerk:Scripted",
            "max_completion_length": 48,
            "num_bootstrap": 100,
        }
    )
    result = evaluate.run(stage, context)
    # Sample 0 of the script calls the calculator; hints make it search.
    assert (result.metrics["accuracy.plain"], result.metrics["accuracy.knowing"]) == (0.0, 1.0)
    assert sum(prompt.startswith("<system>hi<eos>") for prompt in clerk.PROMPTS) == 2 * 4
    assert sum(prompt.startswith("<system>step 1: search\nstep 2: done<eos>") for prompt in clerk.PROMPTS) == 2 * 4


def test_one_environment_at_a_time():
    for kind, settings in ((Rl, RL), (Evaluate, {"kind": "evaluate", "model": "m", "prompts": "p"})):
        with pytest.raises(ValidationError, match="give either `agent`"):
            kind.model_validate(settings | {"agent": "a", "env": "guess"})
    with pytest.raises(ValidationError, match=r"no model is called `x`; models: a"):
        Evaluate.model_validate({"kind": "evaluate", "models": {"a": "m"}, "prompts": "p", "agents": {"x": "k"}})


def compiled(tmp_path, environment, top):
    (tmp_path / "r.yaml").write_text(RECIPE % (environment, top))
    plan = compile_recipe(load_recipe(tmp_path / "r.yaml"), Layout(tmp_path))
    return {step.name: step for step in plan.steps}


def test_the_key_of_what_acts_holds_the_agents_settings_and_code(tmp_path):
    one, same, other = (compiled(tmp_path, "tools", top) for top in (1, 1, 2))
    assert one["trained"].key == same["trained"].key
    assert one["clerk"].key != other["clerk"].key
    assert one["trained"].key != other["trained"].key
    assert {
        "learning.environments.tools",
        "learning.tools.calls",
        "learning.agents.environment",
        "learning.agents.made",
        "learning.sandbox.run",
    } <= set(one["clerk"].code)
    assert "learning.toy_tasks.environments.guess" in compiled(tmp_path, "guess", 1)["clerk"].code


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("calculator,", "calculatr,"), r"r.yaml:8:15: stages.clerk.toolkit.0: no tool `calculatr`"),
        (("top: 1", "tpo: 1"), r"stages.clerk.toolkit.1.tpo: unknown key `tpo`"),
        (("use: tools", "use: tools, longst: 3"), r"stages.clerk.environment.longst: unknown key `longst`"),
        (("use: tools", "use: tools, tools: [calculator]"), r"must not list `tools`; list them in `toolkit`"),
        (("    environment: {use: tools}\n", ""), r"tools are called in an environment"),
        (("agent: clerk", "agent: base"), r"stages.trained.agent: wants agent, but `base` is policy"),
    ],
)
def test_what_is_wrong_with_an_agent_has_its_place(tmp_path, change, message):
    (tmp_path / "r.yaml").write_text((RECIPE % ("tools", 1)).replace(*change))
    with pytest.raises(RecipeError, match=message):
        load_recipe(tmp_path / "r.yaml")

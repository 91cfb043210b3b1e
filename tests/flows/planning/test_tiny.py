"""`--tiny`: the same graph, small; imported configurations run with it from end to end."""

import io
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from flows.planning.recipe_plan import plan_recipe
from flows.planning.tiny import COMPLETION, ROWS, STEPS, TURN, derive_tiny
from flows.runs.start import start_run
from lineage.layout import Layout
from schemas.endpoint import find_endpoints
from schemas.errors import PlanError
from schemas.importers.convert import TOOLS, import_config
from schemas.package import ROOT
from schemas.recipe.load import load_recipe

FIXTURES = ROOT / "tests/schemas/importers/fixtures"
CASES = sorted(f"{f.parent.name}/{f.name}" for f in FIXTURES.glob("*/*") if f.parent.name in TOOLS)
QUICK = ("axolotl/qlora_fsdp.yaml", "lm-eval/choices.sh", "trl/grpo.yaml")
"""Of data that are not here, of tasks of lm-eval whose data are not here, and of files."""


def small(path, tmp_path):
    recipe = load_recipe(path)
    return recipe, load_recipe(path, top=derive_tiny(recipe, Layout(tmp_path)))


def run_small(path, folder):
    """Run a recipe as `--stand-ins` does; the run must end well."""
    layout = Layout(folder)
    plan = plan_recipe(path, layout, stand_ins=True)
    printed = io.StringIO()
    assert start_run(plan, layout, "inprocess", Console(file=printed, width=200)).exit_code == 0, printed.getvalue()


@pytest.mark.parametrize("name", ["chats", "quickstart", "steps"])
def test_the_graph_is_the_same_and_everything_is_small(name, tmp_path):
    recipe, tiny = small(ROOT / f"recipes/{name}.yaml", tmp_path)
    assert list(tiny.steps) == list(recipe.steps)
    for step in recipe.steps:
        assert [port.steps for port in tiny.ports(step)] == [port.steps for port in recipe.ports(step)]
    assert tiny.name == f"{recipe.name}-tiny"
    assert tiny.promotion is None
    for stage in tiny.stages.values():
        assert getattr(stage, "max_steps", STEPS) == STEPS
        if stage.kind != "synthesize" or stage.model is not None:  # programs write their answers whole
            assert getattr(stage, "max_completion_length", COMPLETION) <= COMPLETION
        assert stage.resources.num_cpus == 1
        assert all(source.max_rows <= ROWS for source in getattr(stage, "sources", []))


def test_a_model_of_the_hub_becomes_a_small_one_of_its_family(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  sft: {kind: sft, model: "hub:Qwen/Qwen2.5-72B-Instruct", data: path:x.jsonl, optim: adamw_8bit, max_length: 8192,
        gradient_accumulation_steps: 64, warmup_steps: 30, num_train_epochs: 3, use_peft: true}
  dpo: {kind: preference, model: sft, reference: "hub:Qwen/Qwen2.5-72B-Instruct", data: path:y.jsonl}
""")
    _, tiny = small(tmp_path / "r.yaml", tmp_path)
    base = tiny.stages["tiny_base"]
    assert (base.config["model_type"], base.config["num_hidden_layers"]) == ("qwen2", 2)
    assert [port.steps for port in tiny.ports("dpo") if port.path == "reference"] == [("tiny_base",)]
    sft = tiny.stages["sft"]
    assert (sft.model, sft.optim, sft.max_length, sft.use_peft) == ("tiny_base", "adamw", 2048, True)
    assert (sft.warmup_steps, sft.gradient_accumulation_steps, sft.long_rows) == (0, 1, "truncate")


def test_tables_of_control_stay_tables(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "defaults: {control: {env: CartPole-v1, algorithm: dqn, environment_steps: 2000}}\n"
        "stages:\n"
        "  table: {kind: control, networks: {hidden_sizes: []}}\n"
        "  network: {kind: control, networks: {hidden_sizes: [64]}}\n"
    )
    stages = small(recipe, tmp_path)[1].steps
    assert stages["table"].stage.networks.hidden_sizes == []
    assert 0 < stages["network"].stage.networks.hidden_sizes[0] < 64


def test_problems_that_others_are_made_of_are_few_too_and_their_variables_are_not_reported(tmp_path):
    (tmp_path / "r.yaml").write_text("""
vars: {games: 500, unread: 1}
stages:
  lessons:
    kind: synthesize
    problems:
      - use: turns
        of:
          use: offered
          of: {use: shop_questions, split: train, size: "${vars.games}"}
          env: {use: tools, tools: [calculator]}
        by: scripted
        env: {use: tools, tools: [calculator]}
    teacher: scripted
""")
    recipe, tiny = small(tmp_path / "r.yaml", tmp_path)
    (use,) = recipe.stages["lessons"].problems
    (few,) = tiny.stages["lessons"].problems
    assert use.options["of"]["of"]["size"] == 500
    assert few.options["of"]["of"] == {**use.options["of"]["of"], "size": ROWS}
    assert few.options["env"] == use.options["env"]
    assert (
        [warning.path for warning in tiny.warnings] == [warning.path for warning in recipe.warnings] == ["vars.unread"]
    )


def test_an_unknown_family_is_refused_by_name(tmp_path):
    (tmp_path / "r.yaml").write_text("stages:\n  sft: {kind: sft, model: hub:org/strange, data: path:x.jsonl}\n")
    with pytest.raises(
        PlanError, match="hub:org/strange is not on this machine, and its name tells none of the families"
    ):
        small(tmp_path / "r.yaml", tmp_path)


def test_the_numbers_of_random_models_stop_nothing(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  base: {kind: init}
  pairs:
    kind: synthesize
    emit: preference_pairs
    problems: [{use: reasoning_gym, family: chain_sum, size: 900, split: train}]
    model: base
    rewards: [{use: answers.exact, weight: 2.0}]
  clean: {kind: curate, data: pairs, expect: {rows: ">= 500"}}
  exam:
    kind: evaluate
    models: {first: base, second: base}
    tasks: [{use: reasoning_gym, family: chain_sum, size: 50, split: test}]
    gate: {metric: accuracy, against: first, min_delta: 0.1, on_fail: branch, branch: [again]}
  again: {kind: sft, model: base, data: hub:lab/rows, after: [exam]}
""")
    _, tiny = small(tmp_path / "r.yaml", tmp_path)
    assert [use.use for use in tiny.stages["pairs"].rewards] == ["answers.exact", "arbitrary.from_text"]
    assert tiny.stages["pairs"].min_margin < 1e-5
    assert tiny.stages["clean"].expect == {}
    assert (tiny.stages["exam"].gate[0].on_fail, tiny.stages["exam"].gate[0].branch) == ("warn", [])


def test_pairs_are_made_of_completions_that_earn_nothing(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  base: {kind: init, config: {model_type: qwen3, hidden_size: 64}}
  pairs:
    kind: synthesize
    emit: preference_pairs
    problems: [{use: reasoning_gym, family: chain_sum, size: 900, split: train}]
    model: base
  tuned: {kind: preference, model: base, data: pairs, max_steps: 9}
""")
    run_small(tmp_path / "r.yaml", tmp_path)


LOOPED = """
stages:
  base: {kind: init, config: {model_type: qwen3, hidden_size: 64}}
  games: {kind: synthesize, emit: prompts, problems: [{use: text_games, size: 900, split: train}]}
  rounds:
    repeat:
      max: 2
      first: {tuned: base}
      stages:
        found:
          kind: synthesize
          prompts: games
          model: previous.tuned
          search: {use: state_mcts, env: text_game, simulations: 99}
          max_completion_length: 900
        tuned: {kind: sft, model: previous.tuned, data: found, max_steps: 900}
"""


def test_rounds_of_a_loop_are_small_and_sample_where_they_search_in_an_environment(tmp_path):
    (tmp_path / "r.yaml").write_text(LOOPED)
    recipe, tiny = small(tmp_path / "r.yaml", tmp_path)
    for step in recipe.steps:
        assert [port.steps for port in tiny.ports(step)] == [port.steps for port in recipe.ports(step)]
    for number in (1, 2):
        assert tiny.stages[f"rounds-{number}-tuned"].max_steps == STEPS
        found = tiny.stages[f"rounds-{number}-found"]
        assert (found.search.use, found.max_completion_length, found.min_reward) == ("samples", TURN, -1e9)
        # Games have no answers: the reward that compares with them says nothing, another one does.
        assert [(use.use, use.optional) for use in found.rewards] == [
            ("answers.exact", True),
            ("arbitrary.from_text", False),
        ]


def test_servers_are_replaced_by_a_local_one(tmp_path, monkeypatch):
    monkeypatch.delenv("TEACHER_URL", raising=False)
    (tmp_path / "r.yaml").write_text("""
endpoints:
  teacher: {base_url: "${env:TEACHER_URL}", api_key: "${env:TEACHER_KEY}", model: large, price: {output_per_million: 1}}
stages:
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, size: 4, split: train}]
    teacher: {use: endpoint, endpoint: teacher}
    num_generations: 1
    max_cost: 1.0
  base: {kind: init, config: {model_type: qwen3, hidden_size: 64}}
  student:
    kind: rl
    algorithm: grpo
    model: base
    prompts: problems
    max_steps: 9
    rewards:
      - {use: judges.endpoint, endpoint: teacher}
      - {use: servers.http, url: "http://127.0.0.1:1/score", headers: {Authorization: "Bearer ${env:TEACHER_KEY}"}}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
""")
    run_small(tmp_path / "r.yaml", tmp_path)
    assert "POSTTRAIN_STAND_IN_URL" not in os.environ
    recipe = load_recipe(tmp_path / "r.yaml")
    tiny = load_recipe(tmp_path / "r.yaml", top=derive_tiny(recipe, Layout(tmp_path), stand_ins=True))
    server = find_endpoints(tiny.steps["lessons"].dump())[0]
    assert (server["base_url"], server["api_key"], server["name"]) == (
        "${env:POSTTRAIN_STAND_IN_URL}",
        None,
        "stand-in",
    )


def test_a_server_that_a_stage_describes_itself_is_refused_by_name(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
    teacher: {use: endpoint, endpoint: {base_url: "http://127.0.0.1:1/v1", model: large, name: mine}}
""")
    with pytest.raises(PlanError, match=r"lessons has an endpoint of its own \(mine\); write it under `endpoints:`"):
        derive_tiny(load_recipe(tmp_path / "r.yaml"), Layout(tmp_path), stand_ins=True)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_an_imported_configuration_runs(case, tmp_path, monkeypatch):
    for name in ("data", "my_rewards"):
        shutil.copytree(FIXTURES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / Path(case).name
    shutil.copyfile(FIXTURES / case, config)
    made = import_config([config], None, tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(made.text)
    run_small(tmp_path / "recipe.yaml", tmp_path)

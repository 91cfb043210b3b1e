"""A Survey on the Optimization of Large Language Model-based Agents: the tree of recipes is derived from their stages.

Not shown: anything about training. The tree is the survey's as far as text without tools goes.
"""

import json
import shutil
from pathlib import Path

import pytest

from flows.planning.compile import compile_recipe
from flows.planning.taxonomy import TREE, classify, tabulate, taxonomy_report
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks.context import Context

RECIPES = Path(__file__).parents[2] / "recipes"
NAME = "llm-agent-optimization-survey"
BASE = """
name: misleading-retrieval-hybrid-rl
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}
    max_length: 64
  rl: {kind: synthesize, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 5}], teacher: answer}
  todo: {kind: synthesize, prompts: asked, model: base, min_reward: 0}
  asked: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 5}]}
"""
TUNED = "  a: {kind: sft, model: base, data: rl, use_peft: true}\n"
REINFORCED = "  b: {kind: rl, model: START, prompts: asked, algorithm: grpo, rewards: [answers.exact], max_steps: 1}\n"
ASKED = (
    "  c: {kind: evaluate, model: MODEL, tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 5}]MORE}\n"
)
PRACTISED = "  practised: {kind: practice, model: base, prompts: asked}\n"
RETRIEVAL = ", solver: {use: retrieve, data: rl}"


def leaves(tmp_path, *stages, **words):
    text = BASE + "".join(stages)
    for word, value in {"MORE": "", **words}.items():
        text = text.replace(word, value)
    (tmp_path / "one.yaml").write_text(text)
    classes = classify(compile_recipe(load_recipe(tmp_path / "one.yaml"), Layout(tmp_path)))
    return {aspect: [leaf for a, leaf in classes if a == aspect] for aspect in TREE}


def test_three_fixtures_are_recognised_by_their_stages(tmp_path):
    tuned = leaves(tmp_path, TUNED, ASKED, MODEL="a")
    assert (tuned["branch"], tuned["technique"]) == (["fine-tuning"], ["adapters"])
    assert tuned["trajectories"] == ["written", "sampled"]
    assert (tuned["reward"], tuned["optimiser"]) == ([], [])
    both = leaves(tmp_path, TUNED.replace(", use_peft: true", ""), REINFORCED, ASKED, START="a", MODEL="b")
    assert both["branch"] == ["hybrid"]
    assert (both["reward"], both["optimiser"], both["technique"]) == (["rule"], ["critic-free"], ["whole weights"])
    alone = leaves(tmp_path, ASKED, MODEL="base", MORE=RETRIEVAL)
    assert (alone["branch"], alone["parameter-free"]) == (["parameter-free"], ["retrieval"])
    assert alone["technique"] == []
    practised = leaves(tmp_path, PRACTISED, ASKED, MODEL="base")
    assert (practised["branch"], practised["parameter-free"]) == (["parameter-free"], ["experience"])
    assert (practised["technique"], practised["reward"]) == ([], [])


def test_the_branch_is_that_of_the_models_own_weights(tmp_path):
    only = leaves(tmp_path, REINFORCED, ASKED, START="base", MODEL="b")
    assert only["branch"] == ["reinforcement learning"]
    # A tuned model beside it, which is a judge or nobody's, changes no branch.
    beside = leaves(tmp_path, TUNED, REINFORCED, ASKED, START="base", MODEL="b")
    assert beside["branch"] == ["reinforcement learning"]
    assert leaves(tmp_path, ASKED, MODEL="base")["branch"] == []
    # A model beside the one made from it is only where that began.
    both = ASKED.replace("model: MODEL", "models: {one: a, two: b}")
    assert leaves(tmp_path, TUNED, REINFORCED, both, START="a")["branch"] == ["hybrid"]
    assert leaves(tmp_path, TUNED, REINFORCED, both, START="base")["branch"] == [
        "fine-tuning",
        "reinforcement learning",
    ]


def test_a_leaf_is_missing_once_its_only_recipe_is_gone():
    everything = [(aspect, leaf) for aspect, names in TREE.items() for leaf in names]
    stands = {"most": everything[1:], "one": everything[:2]}
    assert tabulate(stands)[1] == []
    assert tabulate({"most": stands["most"]})[1] == ["branch / fine-tuning"]
    assert len(tabulate({"one": stands["one"]})[1]) == len(everything) - 2


@pytest.mark.slow
def test_every_leaf_is_covered_by_the_shipped_recipes_and_a_lost_one_is_missed(tmp_path):
    files = sorted((RECIPES / "papers").glob("*.yaml"))
    stands = {file.stem: classify(compile_recipe(load_recipe(file), Layout(tmp_path))) for file in files}
    table, missing = tabulate(stands)
    assert missing == []
    assert sum(map(len, TREE.values())) == len(table)
    only = {names[0]: leaf for leaf, names in table.items() if len(names) == 1}
    assert only[NAME] in {("branch", "reinforcement learning"), ("parameter-free", "retrieval")}
    for name in only:
        left = {recipe: leaves for recipe, leaves in stands.items() if recipe != name}
        assert tabulate(left)[1] == [" / ".join(leaf) for leaf, names in table.items() if names == [name]]


def test_the_stage_writes_the_report_and_names_what_does_not_compile(tmp_path):
    for folder in ("papers", "bases", "algorithms"):
        (tmp_path / "recipes" / folder).mkdir(parents=True)
    shutil.copy(RECIPES / "bases" / "chain_sum.yaml", tmp_path / "recipes" / "bases")
    for name in ("path-not-taken", "lambda-rlm"):
        shutil.copy(RECIPES / "papers" / f"{name}.yaml", tmp_path / "recipes" / "papers")
    (tmp_path / "recipes" / "papers" / "wrong.yaml").write_text("stages: {a: {kind: nothing}}\n")
    context = Context({"recipes": tmp_path / "recipes"}, tmp_path / "out", tmp_path / "checkpoints", seed=0)
    metrics = taxonomy_report(context)
    report = json.loads((tmp_path / "out/outputs/report/report.json").read_text())
    assert (metrics["recipes"], metrics["broken"], list(report["broken"])) == (2, 1, ["wrong"])
    assert report["recipes"]["path-not-taken"][:2] == ["branch / fine-tuning", "branch / hybrid"]
    assert report["leaves"]["technique / adapters"] == ["path-not-taken"]
    assert "reward / model" in report["missing"]
    assert metrics["missing"] == len(report["missing"])
    page = (tmp_path / "out/outputs/report/report.md").read_text()
    assert "| parameter-free | program | lambda-rlm |" in page
    assert "| reward | model | **none** |" in page
    with pytest.raises(StepError, match="no recipes in elsewhere/"):
        taxonomy_report(context, folder="elsewhere")

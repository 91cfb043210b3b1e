import json
import subprocess
import sys
from dataclasses import replace

import pytest

import flows.planning.closure as closure_module
from flows.planning.compile import compile_recipe, select_stages
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.recipe.load import load_recipe
from tests.flows.checkout import REPOSITORY

MODELS = """
name: models
stages:
  one: {kind: init, tokenizer: {use: characters%s}}
  two: {kind: init, tokenizer: {use: characters%s}}
  data:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]
    teacher: {use: answer}
  tuned: {kind: sft, model: two, data: data, max_steps: 1}
  merged:
    kind: merge
    merge_method: linear
    models: [{model: one, parameters: {weight: 1}}, {model: tuned, parameters: {weight: 1}}]
"""


def compiled(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    return compile_recipe(load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path))


def test_editing_a_surrogate_changes_rl_and_not_sft(monkeypatch, tmp_path):
    recipe = load_recipe(REPOSITORY / "recipes/quickstart.yaml")
    before = {s.name: s.key for s in compile_recipe(recipe, Layout(tmp_path)).steps}
    original = closure_module.read_module

    def edited(file, known):
        facts = original(file, known)
        if file.name != "policy_gradient.py":
            return facts
        return replace(facts, statements=tuple(s._replace(digest="0" * 64) for s in facts.statements))

    monkeypatch.setattr(closure_module, "read_module", edited)
    after = compile_recipe(recipe, Layout(tmp_path))
    changed = {name for name in before if after.step(name).key != before[name]}
    assert {"rl_1", "rl_2", "rl_2_rloo", "merged", "report"} == changed
    assert all("learning.algorithm.policy_losses.policy_gradient" not in s.code for s in after.steps if s.kind != "rl")


OPTIMISERS = """
name: optimisers
stages:
  base: {kind: init}
  data:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]
    teacher: {use: answer}
  tuned: {kind: sft, model: base, data: data, max_steps: 1, optim: %s}
"""


@pytest.mark.parametrize(("optim", "counts"), [("adamw", False), ("adafactor", False), ("muon", True), ("lion", True)])
def test_an_optimiser_is_in_the_key_of_a_step_that_uses_it(tmp_path, optim, counts):
    code = compiled(tmp_path, OPTIMISERS % optim).step("tuned").code
    assert ("learning.models.optimizers" in code) == counts
    assert "learning.models.optimize" in code


SOURCES = """
name: sources
stages:
  outside: {kind: init, tokenizer: "path:./%s"}
  own: {kind: init}
  given: {kind: python, function: {use: "writer:write"}, produces: {model: policy}}
  evaluated:
    kind: evaluate
    models: {model: %s}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 10}]
"""


@pytest.mark.parametrize(
    ("folder", "model", "readers"),
    [("plain", "own", set()), ("gguf", "own", {"outside"}), ("plain", "given", {"evaluated"})],
)
def test_the_reader_of_gguf_files_is_in_the_key_where_an_input_may_be_one(tmp_path, folder, model, readers):
    (tmp_path / "writer.py").write_text("def write(context):\n    pass\n")
    for name, file in (("plain", "tokenizer.json"), ("gguf", "base/model.gguf")):
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_bytes(b"")
    plan = compiled(tmp_path, SOURCES % (folder, model))
    assert {step.name for step in plan.steps if "learning.models.gguf" in step.code} == readers
    assert {step.name for step in plan.steps if "learning.models.gguf_tokenizer" in step.code} == readers


FORMS = """
name: forms
stages:
  data:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]
    teacher: {use: answer}
  first: {kind: sft, model: "path:./model", data: data, max_steps: 1, use_peft: %s}
  second: {kind: sft, model: first, data: data, max_steps: 1}
  third: {kind: sft, model: second, data: data, max_steps: 1}
  sampled:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]
    model: third
  last: {kind: sft, model: "path:./other", data: sampled, max_steps: 1}
"""
TOWERS = {"text_config": {}, "vision_config": {}}


@pytest.mark.parametrize(
    ("config", "adapted", "module", "steps"),
    [
        ({}, "false", "learning.models.adapters", set()),
        ({}, "true", "learning.models.adapters", {"first", "second"}),
        ({}, "false", "learning.models.towers", set()),
        (TOWERS, "false", "learning.models.towers", {"first", "second", "third", "sampled"}),
    ],
)
def test_code_for_adapters_and_multimodal_models_is_in_the_keys_of_steps_that_may_read_or_write_them(
    tmp_path, config, adapted, module, steps
):
    for name, content in (("model", config), ("other", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "llama", **content}))
    plan = compiled(tmp_path, FORMS % adapted)
    assert {step.name for step in plan.steps if module in step.code} == steps


def test_an_adapter_from_outside_is_folded_by_code_in_the_key(tmp_path):
    for name in ("model", "other"):
        (tmp_path / name / "base").mkdir(parents=True)
        (tmp_path / name / "base" / "config.json").write_text('{"model_type": "llama"}')
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM"}
    (tmp_path / "model" / "adapter_config.json").write_text(json.dumps(adapter))
    (tmp_path / "model" / "adapter_model.safetensors").write_bytes(b"")
    plan = compiled(tmp_path, FORMS % "false")
    assert {step.name for step in plan.steps if "learning.models.adapters" in step.code} == {"first"}


def test_models_of_two_tokenizers_do_not_meet_in_a_merge(tmp_path):
    compiled(tmp_path, MODELS % ("", ""))
    with pytest.raises(PlanError, match=r"merged: models.0.model \(one\) and models.1.model \(tuned\).*alphabet"):
        compiled(tmp_path, MODELS % ("", ', alphabet: "abc0123456789"'))


CHATTED = """
name: chatted
stages:
  base: {kind: init}
  data: {kind: synthesize, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}], teacher: answer}
  tuned: {kind: sft, model: base, data: data, max_steps: 1, chat_template_kwargs: {enable_thinking: false}, %s}
  pairs: {kind: synthesize, prompts: more, model: tuned, emit: preference_pairs, num_generations: 2}
  more: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]}
  better: {kind: preference, model: tuned, reference: base, data: pairs, max_steps: 1, %s}
"""


def test_models_with_other_chat_settings_meet_only_where_the_stage_sets_them(tmp_path):
    (tmp_path / "chat.jinja").write_text("{{ messages[0]['content'] }}")
    with pytest.raises(PlanError, match=r"better: .*`chat_template_kwargs` is \{\"enable_thinking\": false\} and null"):
        compiled(tmp_path, CHATTED % ("", ""))
    template = "chat_template: path:chat.jinja"
    with pytest.raises(PlanError, match=r"better: .*tokenizer.chat_template: "):
        compiled(tmp_path, CHATTED % (template, "chat_template_kwargs: {}"))
    plan = compiled(tmp_path, CHATTED % (template, f"chat_template_kwargs: {{}}, {template}"))
    assert plan.step("tuned").settings["chat_template"] == "{{ messages[0]['content'] }}"
    (tmp_path / "chat.jinja").write_text("{{ messages[1]['content'] }}")
    edited = compiled(tmp_path, CHATTED % (template, f"chat_template_kwargs: {{}}, {template}"))
    assert edited.step("tuned").key != plan.step("tuned").key


@pytest.mark.parametrize(
    ("setting", "message"),
    {
        "chat_template: path:none.jinja": "no file `none.jinja`",
        'chat_template: "{{ messages"': "no Jinja template: line 1",
        "chat_template: chatml": "`chatml` is no template and has nothing of a conversation",
        "chat_template_kwargs: {messages: 1}": "`messages` is set by posttrain; remove it",
        "tools: [{name: add}]": "`tools.0`: a tool is a map",
        "chat_date: 2025-13-01": "month must be in 1..12",
    }.items(),
)
def test_chat_settings_that_no_template_can_take_are_refused_at_their_place(tmp_path, setting, message):
    with pytest.raises(RecipeError, match=message) as refused:
        compiled(tmp_path, CHATTED % ("", setting))
    assert "recipe.yaml:9:" in str(refused.value)


def test_only_keeps_what_a_stage_needs(tmp_path):
    plan = compiled(tmp_path, MODELS % ("", ""))
    assert {s.name for s in select_stages(plan, ["tuned"]).steps} == {"two", "data", "tuned"}
    with pytest.raises(PlanError, match="did you mean `tuned`"):
        select_stages(plan, ["tunde"])


def test_a_changed_source_folder_changes_the_key(tmp_path):
    text = 'name: p\nstages:\n  e: {kind: curate, data: "path:./rows"}\n'
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/rows.parquet").write_bytes(b"1")
    first = compiled(tmp_path, text).steps[0].key
    assert compiled(tmp_path, text).steps[0].key == first
    (tmp_path / "rows/rows.parquet").write_bytes(b"2")
    assert compiled(tmp_path, text).steps[0].key != first
    with pytest.raises(PlanError, match="no such folder"):
        compiled(tmp_path, text.replace("./rows", "./gone"))


def test_planning_imports_nothing_heavy():
    heavy = "('torch', 'ray', 'prefect', 'mlflow', 'dvc')"
    modules = "flows.planning.compile, flows.planning.explain, flows.runs.launch"
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

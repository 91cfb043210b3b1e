"""Which steps are left when a model from outside takes the place of those that made one."""

from schemas.recipe.load import load_recipe

RECIPE = """
name: needed
stages:
  start: START
  asked: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]}
  shown: {kind: synthesize, teacher: answer, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 9}]}
  counted: {kind: python, function: "needed_lab:work", inputs: {x: shown}}
  better: {kind: rl, algorithm: grpo, model: start, prompts: asked, rewards: [answers.exact], max_steps: 1}
  drawn: {kind: python, function: "needed_lab:work", inputs: {x: better}}
"""


def test_functions_that_report_on_training_are_kept_and_preparations_without_a_user_are_not(tmp_path):
    (tmp_path / "needed_lab.py").write_text("def work(context):\n    return {}\n")
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.replace("START", "{kind: init, tokenizer: {use: characters, alphabet: abc0123456789}}"))
    assert set(load_recipe(file).steps) == {"start", "asked", "shown", "counted", "better", "drawn"}
    file.write_text(RECIPE.replace("START", "path:./model"))
    assert set(load_recipe(file).steps) == {"asked", "better", "drawn"}

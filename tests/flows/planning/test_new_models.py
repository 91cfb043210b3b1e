"""An `init` stage whose architecture is no causal language model is refused by name, in `validate` and in `plan`."""

import pytest

from flows.planning.preflight import find_problems
from flows.planning.recipe_plan import plan_recipe
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = "name: made\nstages:\n  base: {kind: init, config: {%s, hidden_size: 32, num_hidden_layers: 2}}\n"


@pytest.fixture
def find(tmp_path):
    """Return the problems of a recipe whose model has a configuration; validate's and the plan's are the same."""

    def make(config):
        file, layout = tmp_path / "recipe.yaml", Layout(tmp_path)
        file.write_text(RECIPE % config)
        problems = find_problems(load_recipe(file), layout, warn=pytest.fail)
        if problems:
            with pytest.raises(RecipeError) as error:
                plan_recipe(file, layout)
            assert list(error.value.problems) == problems
        return problems

    return make


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("model_type: bert", "a bert model attends to later tokens (it has no `is_decoder: true`)"),
        ("model_type: roberta, is_decoder: false", "a roberta model attends to later tokens"),
        ("model_type: xlnet, is_decoder: true", "a xlnet model attends to later tokens; use a causal language model"),
        ("model_type: t5", "'t5' is not a causal language model"),
        ("model_type: lama", "'lama' is not a causal language model; did you mean `llama`?"),
        ("model_type: gemma3", "gemma3 is multimodal; name its text model, `gemma3_text`"),
        ("model_type: qwen3_5", "qwen3_5 is multimodal; name its text model, `qwen3_5_text`"),
        ("model_type: got_ocr2", "got_ocr2 is multimodal; name its text model"),
    ],
)
def test_architectures_that_are_no_language_models_are_refused_at_their_line(find, config, message):
    (problem,) = find(config)
    assert (problem.line, problem.column) == (3, 43)
    assert problem.path == "stages.base.config.model_type"
    assert message in problem.message


def test_a_configuration_without_a_type_is_refused(find):
    (problem,) = find("num_attention_heads: 4")
    assert "`model_type` is missing; name an architecture" in problem.message


@pytest.mark.parametrize("config", ["model_type: qwen3", "model_type: bert, is_decoder: true", "model_type: bart"])
def test_causal_language_models_pass(find, config):
    assert find(config) == []


@pytest.mark.parametrize(
    ("tokenizer", "place", "message"),
    [
        ("tokenizer: {use: characters, alphabet: ''}", "stages.base.tokenizer.alphabet", "this is empty"),
        ("tokenizer: {use: characters, alphabet: aab}", "stages.base.tokenizer.alphabet", "'a' is there twice"),
        ("added_tokens: [<a>, <a>]", "stages.base.added_tokens.1", "'<a>' is a token already"),
        ("added_tokens: [a]", "stages.base.added_tokens.0", "'a' is a token already"),
        ("added_tokens: ['']", "stages.base.added_tokens.0", "a token without text"),
    ],
)
def test_tokens_that_are_none_or_there_twice_are_refused_by_validate(tmp_path, tokenizer, place, message):
    (tmp_path / "recipe.yaml").write_text(f"name: made\nstages:\n  base:\n    kind: init\n    {tokenizer}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "recipe.yaml")
    (problem,) = caught.value.problems
    assert (problem.path, problem.message, problem.line) == (place, message, 5)


def test_a_folder_without_the_tokenizer_that_is_named_is_refused_by_validate(tmp_path):
    (tmp_path / "empty").mkdir()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: made\nstages:\n  base: {kind: init, tokenizer: 'path:empty'}\n")
    (problem,) = find_problems(load_recipe(recipe), Layout(tmp_path), warn=pytest.fail)
    assert "no tokenizer there: tokenizer.json is missing" in problem.message
    (tmp_path / "empty" / "tokenizer.json").write_text("{}")
    assert not find_problems(load_recipe(recipe), Layout(tmp_path), warn=pytest.fail)

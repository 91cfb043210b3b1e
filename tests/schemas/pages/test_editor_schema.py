from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from schemas.pages.editor_schema import make_editor_schema
from schemas.source.parser import read_source

HERE = Path(__file__).parent.parent.parent
GOOD = sorted([*(HERE / "recipes" / "good").glob("*.yaml"), *(HERE.parent / "recipes").glob("*.yaml")])
# Mistakes of form, which an editor can underline; those of meaning (references, cycles) it cannot know.
OF_FORM = [
    "unknown_top_key",
    "no_stages",
    "stages_is_a_list",
    "stages_empty",
    "unknown_key",
    "foreign_key",
    "unknown_kind",
    "no_kind",
    "missing_key",
    "below_zero",
    "yes_is_a_word",
    "quoted_number",
    "true_is_no_number",
    "word_for_number",
    "not_a_list",
    "not_one_of_the_words",
    "unknown_reward",
    "reward_without_family",
    "helper_is_no_reward",
    "unknown_option",
    "option_of_wrong_type",
    "option_missing",
    "option_not_one_of_the_words",
    "schedule_misspelt",
    "schedule_incomplete",
    "unknown_algorithm",
    "slots_missing",
    "temperature_zero",
    "matrix_empty",
    "loop_without_end",
    "stage_name",
    "schema_version",
    "defaults_for_no_kind",
    "bad_default",
    "function_without_path",
]


@pytest.fixture(scope="module")
def schema():
    return make_editor_schema()


@pytest.fixture(scope="module")
def validator(schema):
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("file", GOOD, ids=lambda p: p.stem)
def test_good_recipes_are_valid(validator, file):
    assert [e.message for e in validator.iter_errors(read_source(file).plain())] == []


@pytest.mark.parametrize("name", OF_FORM)
def test_recipes_of_wrong_form_are_invalid(validator, name):
    assert not validator.is_valid(read_source(HERE / "recipes" / "bad" / f"{name}.yaml").plain())


def test_options_of_functions_are_described(schema):
    definitions = schema["$defs"]
    by_name = {
        f["properties"]["use"]["const"]: f
        for f in definitions["PolicyLossUse"]["anyOf"]
        if "const" in f.get("properties", {}).get("use", {})
    }
    clipped = by_name["clipped"]
    assert clipped["properties"]["epsilon"]["default"] == 0.2
    assert "clipped loss" in clipped["description"]
    assert clipped["additionalProperties"] is False


def test_the_schema_is_the_same_every_time(schema):
    assert make_editor_schema() == schema

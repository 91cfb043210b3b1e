"""What is asked of a server is part of a step's key; how it is reached is not."""

import pytest

from flows.planning.compile import compile_recipe
from lineage.layout import Layout
from schemas.endpoint import Endpoint, find_endpoints
from schemas.recipe.load import load_recipe

ENDPOINT = {"base_url": "http://127.0.0.1:1/v1", "model": "big", "price": "{input_per_million: 1.0}"}
RECIPE = """
name: keys
endpoints:
  teacher: {%s}
budget: {%s}
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    max_length: 64
  exercises:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 8, style: short}]
  lessons:
    kind: synthesize
    prompts: exercises
    teacher: {use: endpoint, endpoint: %s}
    max_cost: %s
  tuned:
    kind: rl
    algorithm: grpo
    model: base
    prompts: exercises
    rewards: [{use: judges.endpoint, endpoint: teacher}]
    max_steps: 1
    max_cost: %s
  exam:
    kind: evaluate
    model: base
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
    engine: {use: openai, endpoint: teacher}
    max_tokens_total: %s
"""
ASK = {"lessons", "tuned", "exam"}


@pytest.fixture
def plan(tmp_path):
    def made(endpoint=None, named="teacher", lessons=1, tuned=1, exam=9, budget=""):
        options = ", ".join(f"{key}: {value}" for key, value in (ENDPOINT | (endpoint or {})).items())
        (tmp_path / "keys.yaml").write_text(RECIPE % (options, budget, named, lessons, tuned, exam))
        return compile_recipe(load_recipe(tmp_path / "keys.yaml"), Layout(tmp_path))

    return made


def changed(one, other):
    keys = [{step.name: step.key for step in plan.steps} for plan in (one, other)]
    return {name for name in keys[0] if keys[0][name] != keys[1][name]}


HOW = {
    "base_url": "http://127.0.0.1:2/v1",
    "api_key": '"${env:KEY}"',
    "price": "{output_per_million: 3.0}",
    "timeout": 9,
    "max_concurrency": 3,
    "requests_per_minute": 60,
    "tokens_per_minute": 1000,
    "max_retries": 1,
    "backoff": 0.5,
    "max_backoff": 2,
    "max_failed": 0.5,
}
WHAT = {"model": "other", "version": "'2'", "extra": "{top_p: 0.5}", "omit": "[seed]", "name": "another"}


def test_every_key_of_an_endpoint_is_of_one_of_two_kinds():
    assert HOW.keys() | WHAT.keys() == Endpoint.model_fields.keys()


def test_how_a_server_is_reached_and_limited_changes_no_key(plan):
    before = plan()
    for key, value in HOW.items():
        assert changed(before, plan({key: value})) == set(), key
    assert changed(before, plan(budget="money: 5")) == set()
    settings = before.step("lessons").settings["teacher"]["endpoint"]
    assert (settings["base_url"], settings["name"]) == ("http://127.0.0.1:1/v1", "teacher")  # the worker is told


def test_what_is_asked_changes_the_keys_of_those_that_ask(plan):
    before = plan()
    for key, value in WHAT.items():
        assert changed(before, plan({key: value})) == ASK, key


def test_a_cap_is_in_the_key_where_it_decides_the_rows(plan):
    before = plan()
    assert changed(before, plan(lessons=2)) == {"lessons"}
    assert changed(before, plan(tuned=2)) == set()
    assert changed(before, plan(exam=10)) == set()


def test_an_endpoint_may_be_written_where_it_is_used(plan):
    inline = "{base_url: http://127.0.0.1:1/v1, model: big, name: teacher, price: {input_per_million: 1.0}}"
    assert changed(plan(), plan(named=inline)) == set()
    endpoints = find_endpoints(plan(named=inline).step("lessons").settings)
    assert [endpoint["model"] for endpoint in endpoints] == ["big"]

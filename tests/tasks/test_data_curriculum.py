"""Mixtures whose weights change with progress, training in the order of the data, and rows to evaluate on."""

import json
from collections import Counter

import numpy as np
import pytest

from learning.data.epochs import Epochs
from learning.data.rows import write_rows
from learning.data.sources import reorder
from learning.models.policy import load_policy
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from schemas.stages.preference import Preference
from schemas.stages.reward_model import RewardModel
from schemas.stages.sft import Sft
from tasks import preference, reward_model, sft
from tasks.context import Context
from tests.tasks.data_stages import line
from tests.tasks.test_data_mixture import mix, stage_of
from tests.tasks.test_sft_sources import mean_loss


@pytest.mark.parametrize("part", [4, 65_536])
def test_each_part_of_a_curriculum_has_the_sources_that_are_active_in_their_shares(tmp_path, monkeypatch, part):
    monkeypatch.setattr(reorder, "PART", part)
    easy, hard = {"weight": 3, "during": [0, 0.5]}, {"weight": 1}
    rows, result = mix(tmp_path, stage_of(easy, hard, {"weight": 1, "during": [0.25, 1]}, max_rows=80), (9, 100, 100))
    parts = [Counter(row["source"] for row in rows[start:end]) for start, end in ((0, 20), (20, 40), (40, 80))]
    assert parts == [{"a": 15, "b": 5}, {"a": 12, "b": 4, "c": 4}, {"b": 20, "c": 20}]
    assert result.details["curriculum"] == [
        {"from": 0.0, "to": 0.25, "rows": [15, 5, 0]},
        {"from": 0.25, "to": 0.5, "rows": [12, 4, 4]},
        {"from": 0.5, "to": 1.0, "rows": [0, 20, 20]},
    ]
    # 27 rows of 9: each three times, its copies numbered in their order.
    ids = [row["id"].partition("#") for row in rows if row["source"] == "a"]
    assert Counter(name for name, _, _ in ids).most_common()[-1][1] == 3
    for name in {name for name, _, _ in ids}:
        assert [copy for own, _, copy in ids if own == name] == ["", "2", "3"]
    assert len({row["id"] for row in rows}) == 80


def test_without_a_limit_no_row_comes_twice_and_the_order_follows_the_seed(tmp_path):
    stage = stage_of({"weight": 1, "during": [0, 0.5]}, {"weight": 1})
    first, result = mix(tmp_path / "1", stage, (10, 90))
    assert [source["mixed"] for source in result.details["sources"]] == [10, 30]
    assert len({row["id"] for row in first}) == 40
    assert mix(tmp_path / "2", stage, (10, 90))[0] == first
    assert mix(tmp_path / "3", stage, (10, 90), seed=1)[0] != first


WRONG = {
    "no weight": ([{"during": [0, 0.5]}, {}], "give every source a `weight`"),
    "a gap": ([{"weight": 1, "during": [0, 0.5]}, {"weight": 1, "during": [0.6, 1]}], "from 0.5 to 0.6"),
    "an end": ([{"weight": 1, "during": [0, 0.5]}], "no source has rows from 0.5 to 1"),
    "no order": ([{"weight": 1, "during": [0.5, 0.5]}, {"weight": 1}], "two shares in order"),
}


@pytest.mark.parametrize(("sources", "message"), WRONG.values(), ids=WRONG)
def test_a_curriculum_without_sense_is_refused(sources, message):
    with pytest.raises(ValueError, match=message):
        stage_of(*sources)


RECIPE = """name: p
stages:
  base: {kind: init}
  mixed:
    kind: data
    sources: [{from: path:a.jsonl, weight: 1, during: [0, 0.5]}, {from: path:b.jsonl, weight: 1}]
  clean: {kind: curate, data: mixed}
  tuned: {kind: sft, model: base, data: %s, max_steps: 1%s}
"""


@pytest.mark.parametrize("data", ["mixed", "clean"])
def test_a_stage_that_would_shuffle_a_curriculum_is_refused(tmp_path, data):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(line("1", "2"))
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE % (data, ""))
    with pytest.raises(
        RecipeError, match=r"(?s)recipe\.yaml:8:10: .*training would shuffle them.*set `shuffle: false`"
    ):
        load_recipe(path)
    path.write_text(RECIPE % (data, ", shuffle: false"))
    load_recipe(path)


def test_without_shuffling_epochs_have_the_order_of_the_rows():
    epochs = Epochs([3] * 5, per_pass=2, passes=1, seed=0, shuffle=False)
    assert [epochs.at(step) for step in range(4)] == [[[0, 1]], [[2, 3]], [[4]], [[0, 1]]]
    with pytest.raises(ValueError, match="packing puts rows together by their lengths"):
        Sft(kind="sft", model="m", data="d", packing=True, shuffle=False)


def row(number, **sides):
    prompt = [{"role": "user", "content": f"{number}+1="}]
    made = {"id": str(number), "prompt": prompt, "answer": None, "family": None, "metadata": "{}"}
    return made | {name: [{"role": "assistant", "content": text}] for name, text in sides.items()}


def train(tmp_path, task, stage, tiny_policy_folder, artifact_type, rows, held_out):
    inputs = {"model": tiny_policy_folder}
    for port, content in (("data", rows), ("validation", held_out)):
        inputs[port] = tmp_path / port
        inputs[port].mkdir()
        write_rows(inputs[port], artifact_type, content)
    (tmp_path / "run").mkdir()
    return task.run(stage, Context(inputs, tmp_path / "run", tmp_path / "checkpoints", seed=3))


SETTINGS = {"model": "m", "data": "d", "validation": "v", "max_steps": 1, "logging_steps": 1}


def test_sft_is_evaluated_on_the_rows_of_validation_and_trains_on_all_others(tmp_path, tiny_policy_folder):
    rows, held_out = ([row(i, completion=str(i + 1)) for i in numbers] for numbers in (range(6), range(10, 13)))
    stage = Sft(kind="sft", learning_rate=1e-12, **SETTINGS)
    result = train(tmp_path, sft, stage, tiny_policy_folder, "chat", rows, held_out)
    policy = load_policy(tiny_policy_folder)
    sequences = []
    for one in held_out:
        template = policy.tokenizer.apply_chat_template
        given = template(one["prompt"], add_generation_prompt=True, return_dict=False)
        ids = template(one["prompt"] + one["completion"], return_dict=False)
        sequences.append((ids, [i >= len(given) for i in range(len(ids))]))
    assert result.metrics["eval_loss"] == pytest.approx(mean_loss(policy.model, sequences), abs=1e-5)
    assert result.metrics["rows"] == 6


@pytest.mark.parametrize(("task", "kind"), [(preference, Preference), (reward_model, RewardModel)])
def test_pairs_of_validation_are_evaluated_on_and_no_others_are_held_out(tmp_path, tiny_policy_folder, task, kind):
    rows, held_out = (
        [{**row(i, chosen="a" * (i % 3 + 1), rejected="b"), "margin": None} for i in numbers]
        for numbers in (range(8), range(10, 13))
    )
    stage = kind.model_validate({"kind": task.__name__.rpartition(".")[2], "eval_steps": 1, **SETTINGS})
    result = train(tmp_path, task, stage, tiny_policy_folder, "preference_pairs", rows, held_out)
    assert (result.metrics["pairs"], result.metrics["held_out"]) == (8, 3)
    points = [json.loads(text) for text in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert np.isfinite(points[-1]["eval_loss"])


def test_two_ways_to_hold_rows_out_are_refused():
    with pytest.raises(ValueError, match="remove one of the two"):
        Sft(kind="sft", validation_fraction=0.1, **SETTINGS)
    Sft(kind="sft", eval_steps=1, **SETTINGS)

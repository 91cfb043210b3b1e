import json
import re

import pytest
import torch

from learning.data.rows import read_rows
from schemas.errors import StepError
from schemas.stages.synthesize import Synthesize
from tasks.context import Context
from tasks.synthesize import accept_samples, make_pairs, run

SUMS = {
    "use": "reasoning_gym",
    "family": "chain_sum",
    "split": "train",
    "size": 20,
    "style": "short",
    "config": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
}
WORDS = {"use": "reasoning_gym", "family": "spell_backward", "split": "train", "size": 10, "style": "short"}


def folder(tmp_path, name="a"):
    (tmp_path / name / "checkpoints").mkdir(parents=True)
    return tmp_path / name


def context(tmp_path, name="a", **inputs):
    here = folder(tmp_path, name)
    return Context(inputs, here, here / "checkpoints", seed=5)


def test_prompts_alone(tmp_path):
    stage = Synthesize(kind="synthesize", emit="prompts", problems=[SUMS, WORDS, SUMS | {"size": 5}])
    result = run(stage, context(tmp_path))
    rows = read_rows(tmp_path / "a/outputs/prompts", "prompts")
    assert len({row["id"] for row in rows}) == len(rows) == 30
    assert result.metrics["repeated"] == 5
    assert [(x["family"], x["problems"]) for x in result.details["yield"]] == [
        ("chain_sum", 20),
        ("spell_backward", 10),
    ]


def test_a_teacher_writes_right_sums_and_equal_bytes(tmp_path):
    stage = Synthesize(kind="synthesize", problems=[SUMS], teacher={"use": "worked_sum", "error_rate": 0.5})
    run(stage, context(tmp_path, "a"))
    run(stage, context(tmp_path, "b"))
    files = [tmp_path / name / "outputs/chat/rows.parquet" for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
    wrong = 0
    for row in read_rows(files[0].parent, "chat"):
        steps, answer = row["completion"][0]["content"].split(" #### ")
        right = eval(row["prompt"][0]["content"].rstrip("= "))  # the problem is arithmetic of our own making
        assert right == int(row["answer"])
        assert steps.endswith(f"= {answer}")
        wrong += int(answer) != right
    assert 3 <= wrong <= 17


def made(scores, texts="abcdef", whole=True):
    return [
        {"id": "p", "text": t, "finished": whole, "score": s, "metadata": '{"x": 1}'}
        for t, s in zip(texts, scores, strict=False)
    ]


def test_rejection_keeps_good_whole_samples_once():
    stage = Synthesize(kind="synthesize", problems=[SUMS], model="m", min_reward=0.5)
    tried = made([0.4, 0.5, None, 1.0], "abcb") + made([0.9], "d", whole=False) + made([1.0], "b")
    assert [row["text"] for row in accept_samples(stage, tried)] == ["b"]
    assert accept_samples(stage, tried)[0]["completion"] == [{"role": "assistant", "content": "b"}]


def test_pairs_are_best_against_worst_and_ties_are_dropped():
    stage = Synthesize(
        kind="synthesize", emit="preference_pairs", problems=[SUMS], model="m", num_generations=4, min_margin=0.5
    )
    (pair,) = make_pairs(stage, made([0.25, 1.0, None, 0.0, 1.0, 0.0]))
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"], pair["margin"]) == ("b", "d", 1.0)
    assert json.loads(pair["metadata"]) == {"x": 1, "chosen_score": 1.0, "rejected_score": 0.0}
    assert make_pairs(stage, made([1.0, 1.0])) == []
    assert make_pairs(stage, made([0.7, 0.3])) == []


def test_samples_of_a_model_are_filtered_and_counted(tmp_path, tiny_policy_folder):
    stage = Synthesize(
        kind="synthesize",
        problems=[SUMS],
        model="m",
        num_generations=16,
        max_completion_length=30,
        temperature=2.0,
        rewards=[{"use": "formats.matches", "pattern": ".{1,12}"}],
    )
    result = run(stage, context(tmp_path, model=tiny_policy_folder))
    rows = read_rows(tmp_path / "a/outputs/chat", "chat")
    assert rows
    assert all(re.fullmatch(".{1,12}", row["completion"][0]["content"].strip(), re.DOTALL) for row in rows)
    assert result.metrics["generated"] == 320
    assert result.metrics["accepted"] == len(rows)
    assert result.metrics["yield"] == len(rows) / 320
    json.dumps(result.details)


def test_the_model_is_loaded_in_the_precision_that_is_named(tmp_path, tiny_policy_folder, monkeypatch):
    import learning.generation.replicas.engine_loading as loading

    seen, load = [], loading.load_policy

    def loaded(folder, **how):
        policy = load(folder, **how)
        seen.append({p.dtype for p in policy.model.parameters()})
        return policy

    monkeypatch.setattr(loading, "load_policy", loaded)
    how = {"problems": [SUMS], "model": "m", "rewards": [{"use": "formats.brevity", "soft": 0, "hard": 12}]}
    stage = Synthesize(kind="synthesize", max_completion_length=8, min_reward=-1.0, dtype="bfloat16", **how)
    run(stage, context(tmp_path, model=tiny_policy_folder))
    assert seen == [{torch.bfloat16}]


def test_pairs_from_a_model_are_bitwise_repeatable(tmp_path, tiny_policy_folder):
    stage = Synthesize(
        kind="synthesize",
        emit="preference_pairs",
        problems=[SUMS],
        model="m",
        num_generations=8,
        max_completion_length=12,
        temperature=2.0,
        rewards=[{"use": "formats.brevity", "soft": 0, "hard": 12}],
        min_margin=0.2,
    )
    for name in "ab":
        run(stage, context(tmp_path, name, model=tiny_policy_folder))
    files = [tmp_path / name / "outputs/preference_pairs/rows.parquet" for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
    for row in read_rows(files[0].parent, "preference_pairs"):
        lengths = [len(row[side][0]["content"]) for side in ("rejected", "chosen")]
        assert row["margin"] == pytest.approx((lengths[0] - lengths[1]) / 12)


def test_earlier_pairs_come_first_and_new_ones_are_noted(tmp_path, tiny_policy_folder):
    stage = Synthesize(
        kind="synthesize",
        emit="preference_pairs",
        problems=[SUMS],
        model="m",
        num_generations=8,
        max_completion_length=12,
        temperature=2.0,
        rewards=[{"use": "formats.brevity", "soft": 0, "hard": 12}],
        min_margin=0.2,
        notes={"round": 1},
    )
    run(stage, context(tmp_path, "a", model=tiny_policy_folder))
    first = tmp_path / "a/outputs/preference_pairs"
    second = stage.model_copy(update={"earlier": "first", "notes": {"round": 2}, "seed": 6})
    run(second, context(tmp_path, "b", model=tiny_policy_folder, earlier=first))
    old, both = (read_rows(f, "preference_pairs") for f in (first, tmp_path / "b/outputs/preference_pairs"))
    assert both[: len(old)] == old
    rounds = [json.loads(row["metadata"])["round"] for row in both]
    assert rounds == [1] * len(old) + [2] * (len(both) - len(old))
    assert len(both) > len(old) > 0


def test_nothing_accepted_says_what_to_do(tmp_path, tiny_policy_folder):
    stage = Synthesize(kind="synthesize", problems=[SUMS], model="m", max_completion_length=2, num_generations=1)
    with pytest.raises(StepError, match="none of 20 samples was accepted; lower min_reward"):
        run(stage, context(tmp_path, model=tiny_policy_folder))

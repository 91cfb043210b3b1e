import json

import numpy as np
import pytest
import torch

from learning.data.rows import write_rows
from learning.models.policy import load_policy
from learning.preference.batches import encode_pair
from learning.preference.loss import compute_logprobs
from schemas.errors import StepError
from schemas.stages.preference import Preference
from tasks import preference
from tasks.preference import run

SETTINGS = {
    "kind": "preference",
    "model": "m",
    "data": "d",
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 8,
    "max_steps": 30,
    "save_steps": 3,
    "logging_steps": 2,
    "validation_fraction": 0.2,
    "max_length": 64,
}


def said(text):
    return [{"role": "assistant", "content": text}]


def rows(n=60):
    """The chosen completion ends in a, the rejected in b; lengths say nothing. Scores are in the metadata."""
    random = np.random.default_rng(0)
    made = []
    for i in range(n):
        good, bad = ("".join(random.choice(list("xyz"), random.integers(1, 6))) for _ in range(2))
        scores = json.dumps({"chosen_score": 0.75, "rejected_score": 0.25})
        made.append(
            {
                "id": str(i),
                "prompt": [{"role": "user", "content": f"p{i}"}],
                "answer": "",
                "family": "f",
                "metadata": scores,
                "chosen": said(good + "a"),
                "rejected": said(bad + "b"),
                "margin": 0.5,
            }
        )
    return made


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    data = tmp_path / "pairs"
    data.mkdir()
    write_rows(data, "preference_pairs", rows())
    return {"model": tiny_policy_folder, "data": data}


def stage(**settings):
    return Preference(**{**SETTINGS, **settings})


def test_it_learns_what_is_preferred_on_prompts_it_has_not_seen(at, training, tiny_policy_folder):
    context = at("one")
    result = run(stage(max_steps=60, eval_steps=30), context)
    assert (result.metrics["pairs"], result.metrics["held_out"]) == (48, 12)
    assert result.metrics["accuracy"] >= 0.9
    curve = training.curve(context)
    assert curve[0]["rewards/margins"] < 0.1 < 1.0 < curve[-1]["rewards/margins"]
    assert curve[-1]["rewards/chosen"] - curve[-1]["rewards/rejected"] == pytest.approx(
        curve[-1]["rewards/margins"], abs=1e-6
    )
    assert [p["step"] for p in curve if "eval_rewards/accuracies" in p] == [30, 60]
    trained, start = (load_policy(f) for f in (context.folder / "outputs/model", tiny_policy_folder))
    pairs = [encode_pair(start.tokenizer, row, 64)[0] for row in rows()]
    with torch.no_grad():
        gap = [compute_logprobs(p.model, pairs).diff(dim=1).mean() for p in (start, trained)]
    assert gap[1] < gap[0] - 5


def test_the_first_step_is_at_the_start_of_every_loss(at, training):
    """Policy, reference and previous are one: the first point of the curves is the loss's value there."""
    for name, loss, expected in (
        ("dpo", [{"use": "dpo"}], np.log(2)),
        ("ipo", [{"use": "ipo", "beta": 0.5}], 1.0),
        ("inpo", [{"use": "inpo", "eta": 2.0, "tau": 0.5}], 1 / 16),
        ("sppo", [{"use": "sppo", "eta": 2.0}], 0.5),
        ("mixed", [{"use": "dpo", "weight": 0.5}, {"use": "hinge", "weight": 2.0}], 2 + np.log(2) / 2),
    ):
        context = at(name)
        run(stage(loss=loss, max_steps=1), context)
        point = training.curve(context)[0]
        assert point["loss"] == pytest.approx(expected, abs=2e-5), name
        assert point["rewards/margins"] == pytest.approx(0, abs=1e-4)


def test_a_reference_is_only_asked_when_a_loss_asks_for_it(at, monkeypatch):
    asked = []
    monkeypatch.setattr(preference, "add_reference", lambda pairs, base, *rest: asked.append(base))
    run(stage(loss=[{"use": "orpo"}], reference="r", previous="p", max_steps=1), at("orpo"))
    assert asked == []
    monkeypatch.undo()
    with pytest.raises(StepError, match="no input 'reference'"):
        run(stage(loss=[{"use": "dpo"}], reference="r", max_steps=1), at("missing"))


def test_log_ratios_are_against_the_reference_that_is_named(at, training, inputs):
    first = at("first")
    run(stage(max_steps=20), first)
    inputs["model"], inputs["reference"] = first.folder / "outputs/model", inputs["model"]
    second = at("second")
    run(stage(max_steps=1, reference="start"), second)
    assert training.curve(second)[0]["rewards/margins"] > 0.3
    third = at("third")
    run(stage(max_steps=1), third)
    assert training.curve(third)[0]["rewards/margins"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("loss", "lora"),
    [
        ([{"use": "dpo"}, {"use": "nll", "weight": 0.1}], {}),
        ([{"use": "bco"}, {"use": "kto"}], {"use_peft": True, "lora_r": 2, "lora_dropout": 0.2}),
        ([{"use": "dpo"}], {"use_peft": True, "lora_r": 2, "load_in_4bit": True}),
    ],
)
def test_an_interrupted_stage_gives_the_same_bits(same_when_interrupted, loss, lora):
    curve = same_when_interrupted(run, stage(loss=loss, max_steps=11, eval_steps=4, **lora), (5, 8))
    assert [p["step"] for p in curve] == [2, 4, 6, 8, 10, 11]


def test_micro_batches_change_nothing_but_rounding(at):
    models = []
    for name, budget in (("whole", 10_000), ("split", 40)):
        context = at(name)
        loss = [{"use": "aot"}, {"use": "nll", "per_token": True}, {"use": "kto"}]
        run(stage(max_steps=3, max_tokens_per_micro_batch=budget, loss=loss), context)
        models.append(load_policy(context.folder / "outputs/model").model.state_dict())
    assert all(torch.allclose(models[0][k], models[1][k], atol=2e-5) for k in models[0])


def test_dropout_of_the_comparing_pass_is_that_of_the_gradients(at, monkeypatch):
    """With adapters' dropout on, both passes of a loss that compares pairs see the same network."""
    seen = []
    whole = preference.add_gradient

    def watched(terms, model, pairs, have, step, budget):
        loss, lp_B2 = whole(terms, model, pairs, have, step, budget)
        seen.append(lp_B2)
        return loss, lp_B2

    from learning.preference import loss as preference_loss

    first = []
    compare = preference_loss.compute_loss

    def kept(terms, lp_P2, *rest):
        if terms:
            first.append(lp_P2.detach().clone())
        return compare(terms, lp_P2, *rest)

    monkeypatch.setattr(preference, "add_gradient", watched)
    monkeypatch.setattr(preference_loss, "compute_loss", kept)
    lora = {"use_peft": True, "lora_r": 2, "lora_dropout": 0.5, "learning_rate": 0.1}
    settings = {"loss": [{"use": "aot"}], "max_tokens_per_micro_batch": 40, "validation_fraction": 0}
    run(stage(max_steps=3, **settings, **lora), at("dropped"))
    assert len(seen) == 3
    for before, after in zip(first, seen, strict=True):
        assert torch.equal(before, after)


def test_missing_inputs_of_a_loss_are_reported(at, inputs):
    bare = [row | {"margin": None, "metadata": None} for row in rows()]
    write_rows(inputs["data"], "preference_pairs", bare)
    with pytest.raises(StepError, match="asks for margin, but 48 of 48 pairs have none"):
        run(stage(loss=[{"use": "odpo"}]), at("margin"))
    with pytest.raises(StepError, match="asks for chosen_score, but 48 of 48"):
        run(stage(loss=[{"use": "sppo"}]), at("score"))
    with pytest.raises(StepError, match="none of 60 pairs fits into 3 tokens"):
        run(stage(max_length=3), at("short"))


def test_pairs_that_are_too_long_are_dropped_and_without_a_held_out_part_all_are_trained_on(at, inputs):
    long = rows()
    long[3]["chosen"] = said("x" * 100)
    write_rows(inputs["data"], "preference_pairs", long)
    result = run(stage(validation_fraction=0, max_steps=-1, num_train_epochs=1.5), at("all"))
    assert (result.metrics["pairs"], result.metrics["dropped.too_long"], result.metrics["held_out"]) == (59, 1, 0)
    assert result.notices[0].startswith("1 of 60 rows (1.7%) are longer than max_length")
    assert result.metrics["accuracy"] is None
    assert result.metrics["steps"] == 12  # 8 steps to a pass


def test_truncated_pairs_keep_the_first_tokens_of_their_completions(at, tiny_policy_folder):
    tokenizer = load_policy(tiny_policy_folder).tokenizer
    row = rows(1)[0] | {"chosen": said("x" * 30 + "a"), "rejected": said("yy")}
    whole, _ = encode_pair(tokenizer, row, 64)
    limit = len(whole.prompt) + 10
    assert encode_pair(tokenizer, row, limit) == (None, True)
    pair, is_cut = encode_pair(tokenizer, row, limit, truncate=True)
    assert (pair.prompt, pair.chosen, pair.rejected, is_cut) == (whole.prompt, whole.chosen[:10], whole.rejected, True)
    same = row | {"rejected": said("x" * 20)}
    assert encode_pair(tokenizer, same, limit, truncate=True) == (None, True)
    assert encode_pair(tokenizer, row, len(whole.prompt), truncate=True) == (None, True)
    result = run(stage(max_length=len(whole.prompt) + 5, long_rows="truncate", max_steps=1), at("cut"))
    assert result.metrics["cut_rows"] > 0
    assert any("and were cut" in notice for notice in result.notices)

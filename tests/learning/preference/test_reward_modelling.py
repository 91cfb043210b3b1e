import numpy as np
import pytest
import torch

from learning.models.reward_model import load_reward_model, make_reward_model
from learning.preference.batches import Pair, group_by_tokens, split_by_prompt
from learning.preference.reward_modelling import (
    compute_bradley_terry_loss,
    measure_calibration,
    measure_length_bias,
    measure_quality,
    score_correct,
)
from learning.rewards.models import learned, load_cached_reward_model
from schemas.errors import StepError
from schemas.training import LoRA


def test_loss_and_gradient_equal_the_direct_formula():
    generator = torch.Generator().manual_seed(0)
    c, r, m = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(3))
    c.requires_grad_()
    r.requires_grad_()
    loss = compute_bradley_terry_loss(c, r, m, 0.3)
    direct = np.log1p(np.exp(-(c - r - m).detach().numpy())) + 0.3 * (c + r).detach().numpy() ** 2
    np.testing.assert_allclose(loss.detach().numpy(), direct, rtol=1e-13)
    loss.sum().backward()
    p = 1 / (1 + np.exp((c - r - m).detach().numpy()))  # probability of the other order
    pull = 2 * 0.3 * (c + r).detach().numpy()
    np.testing.assert_allclose(c.grad.numpy(), pull - p, rtol=1e-12)
    np.testing.assert_allclose(r.grad.numpy(), pull + p, rtol=1e-12)


def test_loss_is_finite_where_the_plain_formula_overflows():
    c = torch.tensor([-1000.0], requires_grad=True)
    loss = compute_bradley_terry_loss(c, torch.tensor([1000.0]))
    loss.sum().backward()
    assert loss.item() == 2000
    assert c.grad.item() == -1


def randomised(policy):
    judge = make_reward_model(policy, 128)
    torch.nn.init.normal_(judge.policy.model.score.weight, generator=torch.Generator().manual_seed(1))
    return judge


PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 12]]
COMPLETIONS = [[[20, 21, 22], [23]], [[24, 25, 26, 27, 28]], [[29], [30, 31], [32, 33, 34]]]


def test_the_reward_is_read_at_the_last_token_whatever_lies_beside_it(tiny_policy):
    judge = randomised(tiny_policy)
    packed = judge.rewards(PROMPTS, COMPLETIONS)
    model = judge.policy.model
    paths = [p + c for p, cs in zip(PROMPTS, COMPLETIONS, strict=True) for c in cs]
    alone = torch.stack(
        [model.score(model.base_model(torch.tensor([ids])).last_hidden_state[0, -1])[0] for ids in paths]
    )
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)
    assert len(set(packed.tolist())) == len(paths)


def test_transformers_classifier_reads_the_saved_folder_to_the_same_rewards(tiny_policy, tmp_path):
    from transformers import AutoModelForSequenceClassification

    judge = randomised(tiny_policy)
    judge.save(tmp_path / "a", LoRA())
    judge.save(tmp_path / "b", LoRA())
    assert all((tmp_path / "b" / f.name).read_bytes() == f.read_bytes() for f in (tmp_path / "a").iterdir())
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a")
    paths = [p + c for p, cs in zip(PROMPTS, COMPLETIONS, strict=True) for c in cs]
    longest, pad = max(map(len, paths)), judge.policy.tokenizer.pad_token_id
    ids = torch.tensor([p + [pad] * (longest - len(p)) for p in paths])
    padded = theirs(ids, attention_mask=(ids != pad).long()).logits[:, 0]
    ours = load_reward_model(tmp_path / "a").rewards(PROMPTS, COMPLETIONS)
    torch.testing.assert_close(ours, padded, rtol=0, atol=1e-5)


def test_a_new_reward_model_prefers_nothing(tiny_policy):
    assert make_reward_model(tiny_policy, 16).rewards(PROMPTS, COMPLETIONS).abs().max() == 0
    assert make_reward_model(tiny_policy, 16).policy.max_length == 16


def test_calibration_of_hand_made_numbers():
    def logit(p):
        return np.log(p / (1 - p))

    # confidence 0.67: three of four right; confidence 0.86: one of two right
    delta = np.array([logit(0.67)] * 3 + [-logit(0.67)] + [logit(0.86), -logit(0.86)])
    calibration = measure_calibration(delta, bins=5)
    assert calibration["expected_calibration_error"] == pytest.approx(4 / 6 * 0.08 + 2 / 6 * 0.36)
    assert [(b["from"], b["n"], b["accuracy"]) for b in calibration["bins"]] == [
        (0.6, 4, 0.75),
        (0.8, 2, 0.5),
    ]


def test_a_calibrated_judge_has_no_calibration_error():
    p = np.random.default_rng(0).uniform(0.5, 1, 200_000)
    right = np.random.default_rng(1).random(200_000) < p
    delta = np.where(right, 1, -1) * np.log(p / (1 - p))
    assert measure_calibration(delta)["expected_calibration_error"] < 0.005


def test_ties_are_half_right():
    assert score_correct(np.array([1.0, 0.0, -2.0])).tolist() == [1, 0.5, 0]


def test_length_bias_of_a_judge_that_only_counts_tokens():
    chosen, rejected = np.array([5, 2, 9, 4]), np.array([3, 6, 1, 4])
    bias = measure_length_bias(0.1 * chosen, 0.1 * rejected, chosen, rejected)
    assert bias["correlation"] == pytest.approx(1)
    assert bias["correlation_within_pairs"] == pytest.approx(1)
    assert bias["accuracy"] == {
        "chosen_longer": {"n": 2, "accuracy": 1.0},
        "chosen_shorter": {"n": 1, "accuracy": 0.0},
        "equal_length": {"n": 1, "accuracy": 0.5},
    }
    assert measure_length_bias(chosen * 0.0, rejected * 0.0, chosen, rejected)["correlation"] is None


def test_held_out_accuracy_has_wilsons_interval():
    rewards = np.array([[1.0, 0.0]] * 8 + [[0.0, 1.0]] * 2)
    accuracy = measure_quality(rewards, np.ones((10, 2)))["accuracy"]
    z, n, p = 1.959963984540054, 10, 0.8
    centre = (p + z * z / 2 / n) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    assert (accuracy["low"], accuracy["high"]) == (pytest.approx(centre - half), pytest.approx(centre + half))


def pair(i, prompt):
    return Pair(str(i), prompt, [1], [2, 3], None)


def test_a_prompt_is_wholly_held_out_or_not_at_all():
    pairs = [pair(i, [i % 20]) for i in range(100)]
    train, held_out = split_by_prompt(pairs, 0.25)
    assert len({p.prompt[0] for p in held_out}) == 5
    assert not {p.prompt[0] for p in held_out} & {p.prompt[0] for p in train}
    assert len(train) + len(held_out) == 100
    assert {p.id for p in split_by_prompt(pairs[::-1], 0.25)[1]} == {p.id for p in held_out}
    with pytest.raises(StepError, match=r"1 distinct prompt"):
        split_by_prompt([pair(0, [1]), pair(1, [1])], 0.5)


def test_pairs_are_grouped_by_their_tokens_in_their_order():
    groups = group_by_tokens([pair(i, [0]) for i in range(5)], max_tokens=8)
    assert [[p.id for p in group] for group in groups] == [["0", "1"], ["2", "3"], ["4"]]
    assert [len(g) for g in group_by_tokens([pair(i, [0]) for i in range(2)], max_tokens=1)] == [1, 1]


def test_learned_rewards_are_those_of_the_model_on_each_scale(tiny_policy, tmp_path):
    from learning.data.chat import encode_prompt
    from learning.models.reward_model import Scale

    judge = randomised(tiny_policy)
    judge.scale = Scale(0.5, 2.0)
    judge.policy.max_length = 40
    judge.save(tmp_path, LoRA())
    rows = [{"prompt": [{"role": "user", "content": t}]} for t in ("ab", "c", "ab", "c")]
    texts = ["x", "yy", "", "z" * 60]
    plain = learned(rows, texts, model=tmp_path)
    tokenizer = judge.policy.tokenizer
    direct = [
        judge.rewards(
            [encode_prompt(tokenizer, r["prompt"])], [[[*tokenizer.encode(t), tokenizer.eos_token_id]]]
        ).item()
        for r, t in zip(rows[:3], texts[:3], strict=True)
    ]
    assert plain[3] is None
    assert plain[:3] == pytest.approx(direct, abs=1e-5)
    standard = [(r - 0.5) / 2 for r in plain[:3]]
    assert learned(rows, texts, model=tmp_path, normalise="standard")[:3] == pytest.approx(standard)
    squashed = [1 / (1 + np.exp(-s)) for s in standard]
    assert learned(rows, texts, model=tmp_path, normalise="sigmoid")[:3] == pytest.approx(squashed)
    load_cached_reward_model.cache_clear()

import math

import numpy as np
import pytest
import torch

from learning.curation.row_scores import instruction_difficulty, perplexity
from learning.curation.score_limits import find_limits
from learning.data.chat import encode_answer, encode_text
from learning.models.policy import load_policy
from learning.sampling.verdicts import guest
from schemas.errors import StepError
from schemas.use import RowScoreUse

TEXTS = [("a b", "c a b"), ("x?", "yes it is"), ("abc", "z"), ("many", "words " * 3), ("q", "xyz " * 60)]


def make_rows():
    return [
        {
            "id": str(i),
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": completion}],
        }
        for i, (prompt, completion) in enumerate(TEXTS)
    ]


def mean_loss(model, ids, start):
    """Cross-entropy of ids from `start` on by transformers' own loss."""
    inputs = torch.tensor([ids])
    labels = inputs.clone()
    labels[0, :start] = -100
    with torch.no_grad():
        return float(model(input_ids=inputs, labels=labels).loss)


def test_perplexity_is_that_of_transformers_own_loss(tiny_policy_folder):
    policy, rows = load_policy(tiny_policy_folder), make_rows()
    scores = perplexity(rows, model=tiny_policy_folder)
    for row, score in zip(rows[:-1], scores[:-1], strict=True):
        prompt, answer = encode_answer(policy.tokenizer, row["prompt"], row["completion"], row)
        assert score == pytest.approx(math.exp(mean_loss(policy.model, prompt + answer, len(prompt))), rel=1e-5)
    assert scores[-1] is None  # longer than the context
    prompts = perplexity(rows, model=tiny_policy_folder, part="prompt")
    ids = encode_text(policy.tokenizer, "a b")
    if policy.tokenizer.bos_token_id is not None:
        ids = [policy.tokenizer.bos_token_id, *ids]
    assert prompts[0] == pytest.approx(math.exp(mean_loss(policy.model, ids, 1)), rel=1e-5)


@pytest.mark.parametrize("has_beginning", [False, True])
def test_instruction_difficulty_compares_the_same_tokens_with_and_without_the_prompt(tiny_policy_folder, has_beginning):
    policy = guest(tiny_policy_folder).policy
    policy.tokenizer.bos_token = policy.tokenizer.convert_ids_to_tokens(3) if has_beginning else None
    rows = make_rows()
    scores = instruction_difficulty(rows, model=tiny_policy_folder)
    for row, score in zip(rows[:-1], scores[:-1], strict=True):
        ids = encode_text(policy.tokenizer, row["completion"][0]["content"])
        if len(ids) == 1 and not has_beginning:
            assert score is None
            continue
        prompt, _ = encode_answer(policy.tokenizer, row["prompt"], row["completion"], row)
        first = 0 if has_beginning else 1
        given = mean_loss(policy.model, prompt + ids, len(prompt) + first)
        alone = mean_loss(policy.model, [3, *ids] if has_beginning else ids, 1)
        assert score == pytest.approx(given / alone, rel=1e-5)
    assert scores[-1] is None


def test_a_row_without_a_completion_is_refused_and_plain_text_has_no_difficulty(tiny_policy_folder):
    row = make_rows()[0]
    with pytest.raises(StepError, match="prompts without completions"):
        perplexity([{"prompt": row["prompt"]}], model=tiny_policy_folder)
    text = {"prompt": [], "completion": [{"role": "text", "content": "a b c"}]}
    assert instruction_difficulty([text], model=tiny_policy_folder) == [None]
    assert perplexity([text], model=tiny_policy_folder)[0] > 1
    pair = {"prompt": row["prompt"], "chosen": row["completion"], "rejected": []}
    assert perplexity([pair], model=tiny_policy_folder) == perplexity([row], model=tiny_policy_folder)
    assert perplexity([pair], model=tiny_policy_folder, side="rejected") == [None]


def test_of_a_number_and_a_quantile_the_stricter_limit_counts():
    values = np.arange(101.0)
    limits = find_limits(RowScoreUse(use="x", min=5, min_quantile=0.1, max=70, max_quantile=0.9), values)
    assert (limits.low, limits.high) == (10, 70)
    limits = find_limits(RowScoreUse(use="x"), values)
    assert (limits.low, limits.high) == (-np.inf, np.inf)


def test_limits_with_nothing_between_them_are_refused():
    with pytest.raises(ValueError, match=r"`min_quantile` \(0.9\) is above `max_quantile` \(0.1\)"):
        RowScoreUse(use="x", min_quantile=0.9, max_quantile=0.1)

"""Questions about shops: splits without common questions, and the assistant's calls."""

import json

import numpy as np
import pytest

from learning.environments.tool_calls import parse_tool_calls
from learning.toy_tasks.shops import shop_assistant, shop_questions
from schemas.errors import StepError


def test_questions_of_the_splits_differ_and_are_enough_for_an_interval():
    train, test = shop_questions(split="train", size=280), shop_questions(split="test", size=120)
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    assert len({row["answer"] for row in test}) > 50
    with pytest.raises(StepError, match="lower `size`"):
        shop_questions(split="test", size=1000)


def test_the_assistant_calls_what_the_question_needs_at_the_given_rate_and_repeats_the_result():
    rows, rng = shop_questions(split="train", size=280), np.random.default_rng(0)

    def count_right(**options):
        made = [parse_tool_calls(shop_assistant(row, rng, **options))[1] for row in rows]
        assert all(len(calls) == 1 for calls in made)
        wanted = [json.loads(row["metadata"]) for row in rows]
        return sum({"tool": call.name, **call.arguments} == case for [call], case in zip(made, wanted, strict=True))

    assert count_right() == 280
    assert count_right(right=0.5) / 280 == pytest.approx(0.5 + 0.5 / (2 * 24), abs=0.08)
    answered = [*rows[0]["prompt"], {"role": "user", "content": "<tool_response>\n42\n</tool_response>"}]
    assert shop_assistant(rows[0] | {"prompt": answered}, rng) == "42"

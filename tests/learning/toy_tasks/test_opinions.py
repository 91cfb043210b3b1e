"""Opinions: problems on two sides, sentences of eight words, the tone of each."""

import numpy as np
import pytest

from learning.toy_tasks.opinions import BAD, GOOD, opinion, opinions
from learning.toy_tasks.rewards.tone import kind
from schemas.errors import StepError


def test_train_and_test_share_nothing():
    train, test = (opinions(size=n, split=s, seed=4) for n, s in ((140, "train"), (30, "test")))
    ids = [row["id"] for row in (*train, *test)]
    assert len(set(ids)) == 170
    assert {r["id"] for r in opinions(size=30, split="test", seed=9)} & set(ids[:140]) == set()
    with pytest.raises(StepError, match="lower `size`"):
        opinions(size=1000, split="train")


@pytest.mark.parametrize(("good", "tone"), [(1.0, 1.0), (0.0, -1.0)])
def test_sentences_have_eight_words_and_a_tone(good, tone):
    rows = opinions(size=20, split="train")
    sentences = [opinion(row, np.random.default_rng(i), good=good) for i, row in enumerate(rows)]
    assert {len(text.split()) for text in sentences} == {8}
    assert kind(rows, sentences) == [tone] * 20
    assert all(
        word in text
        for row, text in zip(rows, sentences, strict=True)
        for word in row["prompt"][0]["content"].split(", ")
    )


def test_tone_counts_words():
    texts = ["the film was good and the end dull", "the film was good", "the film", "Great, great and poor."]
    assert kind([{}] * 4, texts) == pytest.approx([0.0, 1.0, 0.0, 1 / 3])
    assert not set(GOOD) & set(BAD)

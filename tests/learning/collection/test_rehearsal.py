"""Rehearsal: how many old completions an iteration gets, which, and what they are to the loop."""

import numpy as np
import pytest

from learning.collection.extra_samples.rehearsal import rehearse
from learning.data.rows import write_rows
from learning.sampling.sampler import Sampler
from schemas.errors import StepError


@pytest.fixture
def folder(tmp_path):
    messages = [{"role": "assistant", "content": "ok"}]
    rest = {"answer": "ok", "family": "old", "metadata": "{}", "completion": messages}
    rows = [{"id": str(i), "prompt": [{"role": "user", "content": f"q{i}"}], **rest} for i in range(9)]
    write_rows(tmp_path, "chat", rows)
    return tmp_path


def test_rows_are_drawn_without_repetition_and_redrawn(tiny_policy, folder):
    def drawn(seed, size):
        sampler = Sampler(None, tiny_policy, None, 0, 3, groups=5)
        return rehearse([], sampler, np.random.default_rng(seed), data=folder, size=size)

    first, again, other = drawn(1, 4), drawn(1, 4), drawn(2, 4)
    assert [t.row["id"] for t in first] == [t.row["id"] for t in again] != [t.row["id"] for t in other]
    assert [t.group for t in first] == [5, 6, 7, 8]
    assert sorted(t.row["id"] for t in drawn(1, 50)) == [str(i) for i in range(9)]
    tokenizer = tiny_policy.tokenizer
    for sample in first:
        assert (sample.source, sample.logprobs, sample.finish, sample.versions) == ("auxiliary", None, "stop", [3] * 3)
        assert sample.completion_ids == [*tokenizer.encode("ok", add_special_tokens=False), tokenizer.eos_token_id]


def test_a_lack_of_rows_to_rehearse_is_reported(tiny_policy, tmp_path):
    write_rows(tmp_path, "chat", [])
    with pytest.raises(StepError, match="`data` has no rows"):
        rehearse([], Sampler(None, tiny_policy, None, 0, 0), np.random.default_rng(0), data=tmp_path)

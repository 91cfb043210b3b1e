import numpy as np
import pytest

from learning.data import rows as tables
from learning.data import stored_rows as stored
from learning.data.examples import cut_example, encode_rows, read_examples
from learning.data.long_rows import list_parts, summarise_lengths
from learning.data.rows import write_rows
from schemas.errors import StepError


def row(number, turns):
    texts = [f"{number}" + "a" * length for length in turns]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    rest = {"id": f"{number}", "answer": None, "family": None, "metadata": "{}"}
    return {**rest, "prompt": messages[:-1], "completion": messages[-1:]}


ROWS = [row(i, (3, i % 40 + 1, 2, i * 7 % 50 + 1)) for i in range(40)]


@pytest.mark.parametrize("limit", [2, 3, 7, 20])
@pytest.mark.parametrize("train_on", ["last", "all"])
def test_the_parts_of_a_split_row_give_each_learned_token_its_loss_once(tiny_policy, train_on, limit):
    for example in encode_rows(tiny_policy.tokenizer, ROWS, 512, train_on).kept:
        parts = cut_example(example, limit, "split")
        assert all(2 <= len(part.ids) <= limit for part in parts)
        learned_tokens = [token for part in parts for token, has in zip(part.ids, part.learned, strict=True) if has]
        assert learned_tokens == [token for token, has in zip(example.ids, example.learned, strict=True) if has]
        assert sum(part.num_learned for part in parts) == example.num_learned
        assert {part.prompt_hash for part in parts} == {example.prompt_hash}


def test_a_truncated_row_keeps_its_first_tokens_and_their_losses(tiny_policy):
    (whole,) = encode_rows(tiny_policy.tokenizer, [ROWS[20]], 512, "all").kept
    (part,) = cut_example(whole, 30, "truncate")
    assert (part.ids, part.learned) == (whole.ids[:30], whole.learned[:30])
    assert cut_example(whole, len(whole.ids), "truncate") == [whole]
    assert cut_example(whole, 4, "truncate") == []  # the prompt alone has more tokens


@pytest.mark.parametrize("long_rows", ["drop", "truncate", "split"])
def test_counts_add_up_and_are_the_same_on_disk(tiny_policy, tmp_path, monkeypatch, long_rows):
    write_rows(tmp_path, "chat", ROWS)
    limit = 60
    lengths = [len(example.ids) for example in encode_rows(tiny_policy.tokenizer, ROWS, 512).kept]
    in_memory = read_examples(tiny_policy.tokenizer, tmp_path, limit, tmp_path / "x", "last", long_rows)
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    monkeypatch.setattr(stored, "PART", 16)
    on_disk = read_examples(tiny_policy.tokenizer, tmp_path, limit, tmp_path / "x", "last", long_rows)
    for encoded in (in_memory, on_disk):
        assert encoded.row_lengths.tolist() == lengths
        assert encoded.lengths.tolist() == [len(example.ids) for example in encoded.kept]
        rows = [example.row for example in encoded.kept]
        over = sum(length > limit for length in lengths)
        assert len(set(rows)) + encoded.dropped == len(ROWS)
        assert encoded.cut + encoded.dropped == over
        assert (encoded.cut > 0) == (long_rows != "drop")
    assert list(in_memory.kept) == list(on_disk.kept)
    assert [e.prompt_hash for e in in_memory.kept] == [e.prompt_hash for e in on_disk.kept]
    with pytest.raises(StepError, match="all 40 rows are longer than 4 tokens"):
        read_examples(tiny_policy.tokenizer, tmp_path, 4, tmp_path / "y", "last", "truncate")


def test_parts_are_at_most_as_long_as_the_limit_and_overlap_by_one():
    assert list_parts([False] + [True] * 6, 3, "split") == [(0, 3), (2, 5), (4, 7)]
    assert list_parts([False] + [True] * 7, 3, "split") == [(0, 3), (2, 5), (4, 7), (6, 8)]
    assert list_parts([False] * 5 + [True] * 2, 3, "split") == [(4, 7)]
    assert list_parts([False] * 5 + [True] * 2, 3, "truncate") == []


def test_lengths_are_summarised_by_lengths_that_rows_have():
    summary = summarise_lengths(np.array([1, 2, 3, 100]), 50)
    quantiles = {"mean": 26.5, "median": 3, "p90": 100, "p99": 100, "longest": 100}
    assert summary == {"rows": 4, **quantiles, "limit": 50, "over": 1}

"""Remarks that are all good or all bad, and a tokenizer with a token for each of their words."""

import json

import pytest

from learning.control.worlds.watermarks import watermarks
from learning.data.rows import write_rows
from learning.data.trained_tokenizers import words
from learning.toy_tasks.remarks import remarks
from schemas.errors import StepError

MEANINGS = [(["clean", "tidy"], ["dirty", "messy"]), (["good"], ["bad"])]


def test_a_remark_is_all_good_or_all_bad():
    rows = remarks(meanings=MEANINGS, size=40, split="train")
    sides = set()
    for row in rows:
        side = json.loads(row["metadata"])["side"]
        sides.add(side)
        said = set(row["answer"].split())
        assert said & {word for pair in MEANINGS for word in pair[side]}
        assert not said & {word for pair in MEANINGS for word in pair[1 - side]}
        thing, word = row["prompt"][0]["content"].split()
        assert row["answer"].startswith(f"the {thing} was ")
        assert row["answer"].split()[4] == word
        assert row["answer"].count("the ") == 6
    assert sides == {0, 1}
    tests = {row["prompt"][0]["content"] for row in remarks(meanings=MEANINGS, size=20, split="test")}
    assert tests.isdisjoint(row["prompt"][0]["content"] for row in rows)
    with pytest.raises(StepError, match="give more `meanings`"):
        remarks(meanings=MEANINGS[1:], size=200, split="test")


def test_a_token_for_each_word(tmp_path):
    rows = remarks(meanings=MEANINGS, size=40, split="train")
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts", "prompts", rows)
    tokenizer = words(data=tmp_path / "prompts")
    seen = {word for row in rows for word in row["prompt"][0]["content"].split()}
    assert len(tokenizer) == 6 + len(seen)
    text = rows[0]["prompt"][0]["content"]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == 2
    assert tokenizer.decode(ids) == text
    assert tokenizer("xyz", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]
    again = words(data=tmp_path / "prompts")
    assert again.get_vocab() == tokenizer.get_vocab()


def test_watermarks_need_prompts(tmp_path):
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts", "prompts", [])
    with pytest.raises(StepError, match="there are no prompts"):
        watermarks(backbone=tmp_path, prompts=tmp_path / "prompts")

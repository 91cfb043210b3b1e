import pytest

from learning.toy_tasks.needles import needles
from schemas.errors import StepError


def test_the_answer_is_the_count_and_parts_add_up():
    rows = needles(size=40, split="train", longest=80)
    for row in rows:
        question, _, body = row["prompt"][0]["content"].partition("|")
        assert question == "key"
        assert 8 <= len(body) <= 80
        assert body.replace(",key,key,", ",,").count("key") <= int(row["answer"]) == body.split(",").count("key")
        cut = len(body) // 8 * 4
        assert body[:cut].count("key,") + body[cut:].count("key,") == int(row["answer"])
    assert len({row["answer"] for row in rows}) > 2
    assert {len(row["prompt"][0]["content"]) for row in needles(size=5, split="test", shortest=400, longest=400)} == {
        404
    }


def test_sides_are_disjoint_and_a_small_space_is_refused():
    train = {r["id"] for r in needles(size=200, split="train", longest=12)}
    assert not train & {r["id"] for r in needles(size=50, split="test", longest=12)}
    with pytest.raises(StepError, match="problems for `size: 9`; raise `longest`"):
        needles(size=9, split="train", shortest=4, longest=4, share=1.0, needle="abcdefghijklmnopqrstuvwxyz"[:25])

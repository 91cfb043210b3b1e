import pytest

from learning.rewards.answers import exact
from learning.rewards.formats import brevity, contains, matches
from schemas.errors import StepError


@pytest.mark.parametrize(
    ("given", "right", "score"),
    [
        ("16", "16", 1.0),
        (" 16.\n", "16", 1.0),
        ("16.0", "16", 1.0),
        ("+16", "16", 1.0),
        ("1,600", "1600", 1.0),
        ("-16", "16", 0.0),
        ("160", "16", 0.0),
        ("16 17", "16", 0.0),
        ("", "16", 0.0),
        ("1,60", "160", 0.0),
        ("a  b", "a b", 1.0),
        ("A b", "a b", 0.0),
        ("nan", "nan", 1.0),
        ("16", None, None),
    ],
)
def test_exact(given, right, score):
    assert exact([{"answer": right}], [given]) == [score]


def test_exact_with_a_marker_takes_the_last():
    rows = [{"answer": "3"}] * 3
    assert exact(rows, ["1 #### 2 #### 3", "3", "#### 3 or so"], marker="####") == [1.0, 0.0, 0.0]
    assert exact([{"answer": "Paris"}], ["paris"], ignore_case=True) == [1.0]


def test_forms():
    rows = [{}] * 3
    assert matches(rows, ["s-u-n", " s \n", "s-"], pattern=r"\w(-\w)*") == [1.0, 1.0, 0.0]
    assert brevity([{}] * 4, ["", "a" * 4, "a" * 6, "a" * 99], soft=4, hard=8) == [0.0, 0.0, -0.5, -1.0]
    with pytest.raises(StepError, match="pattern"):
        matches(rows, ["a"] * 3, pattern="(")
    with pytest.raises(StepError, match="must be above"):
        brevity(rows, ["a"] * 3, soft=4, hard=4)


def test_every_text_or_the_share_of_them():
    texts = ["<think>", "</think>"]
    completions = ["<think>a</think>", "<think>a", "", "<THINK></THINK>"]
    assert contains(completions, texts=texts) == [1.0, 0.0, 0.0, 0.0]
    assert contains(completions, texts=texts, share=True) == [1.0, 0.5, 0.0, 0.0]
    assert contains(completions, texts=texts, ignore_case=True) == [1.0, 0.0, 0.0, 1.0]


def test_a_part_may_match():
    assert matches([{}] * 2, ["so: 12 eggs", "none"], pattern=r"\d+ eggs", where="anywhere") == [1.0, 0.0]
    assert matches([{}], ["so: 12 eggs"], pattern=r"\d+ eggs") == [0.0]

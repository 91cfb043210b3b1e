from fractions import Fraction

import pytest

from learning.lookup import bind
from learning.rewards.mathematics import are_equal, read_value
from schemas.use import RewardUse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (" -1,234.50 ", Fraction(-2469, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac{3}{4}.", Fraction(-3, 4)),
        (r"\frac12", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"50\%", Fraction(1, 2)),
        (r"$\left(\frac{-1}{3}\right)$", None),
        (r"\frac{-1}{3}", Fraction(-1, 3)),
        (r"90^\circ", 90),
        (".5", Fraction(1, 2)),
        ("1/0", None),
        ("8/4/2", None),
        (r"\frac{1}{0}", None),
        ("x+1", None),
        ("9" * 400, None),
        ("1/" * 40 + "1", None),
        ("__import__('os')", None),
        ("", None),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert read_value(text) == value


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (r"\frac{2}{4}", "0.5", True),
        ("0.333", r"\frac13", False),
        (r"(1, \frac{1}{2})", "(1,0.5)", True),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", "[1,2]", False),
        ("[0, 1)", "[0,1)", True),
        (r"\{1, 2\}", r"\{1.0, 2\}", True),
        (r"x^2 + 1", "x^2+1", True),
        (r"\text{even}", "even", True),
        (r"\left( x \right)", "(x)", True),
        (r"2\sqrt{3}", r"2 \sqrt{3}", True),
        ("12", "1 2", False),
        ("(1,200)", "(1, 200)", True),
        ("1,200", "1200", True),
        ("", "", False),
        ("(1)", "1", False),
    ],
)
def test_answers_are_equal_by_value_or_by_text(first, second, equal):
    assert are_equal(first, second) is equal
    assert are_equal(second, first) is equal


def test_the_reward_reads_the_last_box_or_what_follows_the_marker():
    reward = bind(RewardUse.model_validate({"use": "mathematics.equal", "marker": "####"}))
    row = {"id": "a", "answer": r"\frac{1}{2}"}
    texts = [r"\boxed{3} so \boxed{0.5}", "#### 1/2", "1/2", r"\boxed{1/3} #### 1/2"]
    assert reward.ask(0, {"rows": [row] * 4, "completions": texts}) == [1.0, 1.0, 0.0, 0.0]
    assert reward.ask(0, {"rows": [row | {"answer": None}], "completions": ["1"]}) == [None]

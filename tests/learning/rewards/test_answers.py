import pytest

from learning.rewards import answers


@pytest.mark.parametrize(
    ("answer", "completion", "score"),
    [
        ("7", "3 + 4 is 7.", 1.0),
        ("7", "7, no: 8", 0.0),
        ("-3", "The answer is -3", 1.0),
        ("1200", "about 1,200 people", 1.0),
        ("7", "seven", 0.0),
        ("7", "", 0.0),
        ("seven", "7", None),
        (None, "7", None),
        ("5", "10-5", 1.0),
        ("2.5", "x=2.50", 1.0),
    ],
)
def test_the_last_number_counts(answer, completion, score):
    assert answers.last_number([{"answer": answer}], [completion]) == [score]


@pytest.mark.parametrize(
    ("answer", "completion", "score"),
    [
        ("Paris", "It is PARIS.", 1.0),
        ("ice", "A slice", 0.0),
        ("carbon dioxide", "carbon-dioxide!", 1.0),
        ("Paris", "", 0.0),
        (None, "Paris", None),
        ("", "Paris", None),
    ],
)
def test_a_mention_is_of_whole_words(answer, completion, score):
    assert answers.mentions([{"answer": answer}], [completion]) == [score]


@pytest.mark.parametrize(
    ("answer", "completion", "score"),
    [
        ("7", r"so \boxed{7}.", 1.0),
        ("7", r"\boxed{6} no, \boxed{ 7.0 }", 1.0),
        ("7", r"\boxed{7} no, \boxed{6}", 0.0),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", 1.0),
        ("7", "7", 0.0),
        ("7", r"\boxed{7", 0.0),
        (None, r"\boxed{7}", None),
    ],
)
def test_the_last_box_counts(answer, completion, score):
    assert answers.boxed([{"answer": answer}], [completion]) == [score]


def test_case_counts_in_a_box_unless_it_is_ignored():
    row, text = [{"answer": "Paris"}], [r"\boxed{paris}"]
    assert (answers.boxed(row, text), answers.boxed(row, text, ignore_case=True)) == ([0.0], [1.0])


@pytest.mark.parametrize(
    ("answer", "completion", "options", "score"),
    [
        ("100", "about 101", {}, 1.0),
        ("100", "about 101.1", {}, 0.0),
        ("100", "99 or 1,000", {}, 0.0),
        ("0", "0.5", {"abs_tol": 0.5}, 1.0),
        ("0", "0.51", {"abs_tol": 0.5}, 0.0),
        ("-2000", "x = -2.0e3", {"rel_tol": 0}, 1.0),
        ("3.14", r"\boxed{3.142} of 7", {"where": "boxed"}, 1.0),
        ("3.14", "3.14.", {"where": "whole"}, 1.0),
        ("3.14", "it is 3.14", {"where": "whole"}, 0.0),
        ("1", "1e999", {}, 0.0),
        ("1", "none", {}, 0.0),
        ("pi", "3.14", {}, None),
        (None, "3.14", {}, None),
    ],
)
def test_a_number_near_the_answer_is_right(answer, completion, options, score):
    assert answers.close([{"answer": answer}], [completion], **options) == [score]

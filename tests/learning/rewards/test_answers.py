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

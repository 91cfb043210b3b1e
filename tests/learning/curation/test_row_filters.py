import pytest

from learning.curation.row_filters import (
    compression,
    entropy,
    get_text,
    matches,
    printable,
    repetition,
    symbol_ratio,
    words,
)
from learning.lookup import bind
from schemas.use import RowFilterUse


def row(completion, prompt="question"):
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": completion}],
    }


def test_parts_of_a_row():
    pair = {"prompt": [{"content": "p"}], "chosen": [{"content": "c"}], "rejected": [{"content": None}]}
    assert [get_text(pair, part) for part in ("prompt", "written", "all")] == ["p", "c\n", "p\nc\n"]


@pytest.mark.parametrize(
    ("keep", "good", "bad", "options"),
    [
        (repetition, "a b c a b d", "a b a b a b a b", {"max_share": 0.6}),  # 8 words, 6 trigrams, 2 distinct: 0.67
        (repetition, "a a", "a a a a", {"ngram": 2, "max_share": 0.6}),  # 3 bigrams, 1 distinct: 0.67
        (compression, "as seen", "ab" * 500, {"min_ratio": 0.1}),
        (symbol_ratio, "ab+-", "ab+-*", {"part": "written", "max_share": 0.5}),
        (entropy, "abab", "aaab", {"part": "written", "min_bits": 0.9}),  # 1 bit; 0.81 bits
        (entropy, "abab", "abcd", {"part": "written", "max_bits": 1.5}),  # 1 bit; 2 bits
        (printable, "été 漢字\n🙂", "a\x00b", {}),
        (printable, "abc\ufffd", "ab\ufffd\x07", {"min_share": 0.7, "part": "written"}),  # 3 of 4; 2 of 4
        (words, "one two", "one two three", {"max_words": 2}),
        (words, "one two", "one", {"min_words": 2}),
        (matches, "so 42", "so", {"pattern": r"\d+$"}),
    ],
)
def test_each_filter_decides_at_its_bound(keep, good, bad, options):
    assert keep(row(good), **options)
    assert not keep(row(bad), **options)


@pytest.mark.parametrize("keep", [repetition, compression, symbol_ratio, printable])
def test_nothing_written_is_not_a_question_of_quality(keep):
    assert keep(row("", prompt=""))


def test_solvable_rows_are_those_whose_answer_a_teacher_finds():
    """A teacher that adds with the calculator; the second answer is wrong, the third row needs more turns."""
    env = {"use": "tools", "tools": ["calculator"], "max_turns": 2}
    keep = bind(RowFilterUse.model_validate({"use": "solvable", "by": f"{__name__}:adds", "env": env}))
    rows = [
        {"id": text, "prompt": [{"role": "user", "content": text}], "answer": answer, "metadata": "{}"}
        for text, answer in (("17+25", "42"), ("17+25 ", "43"), ("slowly 17+25", "42"))
    ]
    assert [keep(row) for row in rows] == [True, False, False]


def adds(row, rng):
    """Call the calculator with the question, and repeat what it says; waste turns on a question that says slowly."""
    *_, last = row["prompt"]
    slow = row["prompt"][0]["content"].startswith("slowly")
    return (
        f"calculator: {last['content'].removeprefix('slowly ')}"
        if len(row["prompt"]) < 3 + 2 * slow
        else last["content"]
    )

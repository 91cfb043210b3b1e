"""Questions over documents: their answers follow from the text, and the splits share no document."""

import pytest

from learning.toy_tasks.documents import QUESTIONS, documents
from schemas.errors import StepError


@pytest.mark.parametrize("kind", sorted(QUESTIONS))
def test_the_splits_share_no_document_and_a_seed_gives_the_same_rows(kind):
    train = documents(kind=kind, size=20, seed=1, split="train", entries=6)
    test = documents(kind=kind, size=10, seed=1, split="test", entries=6)
    assert not {r["prompt"][0]["content"] for r in train} & {r["prompt"][0]["content"] for r in test}
    assert documents(kind=kind, size=20, seed=1, split="train", entries=6) == train


def read(row):
    """Return the entries of a problem's document and its question."""
    text, question = row["prompt"][0]["content"].rsplit("; ", 1)
    return [(name, int(value)) for name, value, *_ in map(str.split, text.split(", "))], question.rstrip("?")


def answer_by_hand(kind, entries, question):
    """Return the answer of a question, by another formula than that of the generator."""
    values, names = dict(entries), [name for name, _ in entries]
    if kind == "lookup":
        return str(values[question])
    if kind == "choice":
        one, other = question.split(" or ")
        return one if values[one] > values[other] else other
    if kind == "listing":
        return " ".join(name for name in names if values[name] >= int(question.removeprefix("from ")))
    if kind == "total":
        return str(sum(values[name] for name in question.split("+")))
    if kind == "extraction":
        return "-".join(str(names.index(name) + 1) for name in question.split(" to "))
    if kind == "matching":
        return " ".join(name for name in names if str(values[name]) in question.split())
    if kind == "ranking":
        return " ".join(sorted(names, key=lambda name: -values[name])[:3])
    if kind == "ordering":
        return " ".join(sorted(question.split()[1:], key=names.index))
    return " ".join(name for i, name in enumerate(names) if all(values[name] > values[n] for n in names[:i]))


@pytest.mark.parametrize("filler", [0, 4])
@pytest.mark.parametrize("kind", sorted(QUESTIONS))
def test_answers_follow_from_the_text(kind, filler):
    for row in documents(kind=kind, size=20, split="train", entries=8, largest=20, letters=1, filler=filler):
        assert row["answer"] == answer_by_hand(kind, *read(row))


def test_words_between_entries_make_long_documents():
    (row,) = documents(kind="lookup", size=1, split="train", entries=8, letters=1, filler=4)
    assert [len(entry.split()) for entry in row["prompt"][0]["content"].rsplit("; ", 1)[0].split(", ")] == [6] * 8
    long = documents(kind="ranking", size=1, split="train", entries=40)[0]["prompt"][0]["content"]
    assert 200 <= len(long) <= 400


def test_too_few_documents_are_refused():
    with pytest.raises(StepError, match="raise `entries`"):
        documents(kind="lookup", size=50, split="test", entries=4, test_share=0.001)
    with pytest.raises(StepError, match="raise `letters`"):
        documents(kind="lookup", size=1, split="test", entries=27, letters=1)

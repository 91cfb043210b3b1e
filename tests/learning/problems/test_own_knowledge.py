"""Problems asked in another way, and labels by what a model solves by itself."""

import json

import pytest

from learning.data.rows import write_rows
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import ProblemsUse

ROWS = [
    {
        "id": name,
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"{name}?"}],
        "answer": name,
        "family": "f",
        "metadata": '{"documents": ["d"], "k": 1}',
    }
    for name in ("a", "b")
]


def make(**use):
    return bind(ProblemsUse.model_validate(use), "problems.0")()


def given():
    return ROWS


def test_problems_are_asked_in_another_way_under_ids_of_their_own():
    changed = make(use="instructed", of=f"{__name__}:given", before="x ", after="!", family="g", without=["documents"])
    assert [row["prompt"][-1]["content"] for row in changed] == ["x a?!", "x b?!"]
    assert [row["prompt"][0] for row in changed] == [ROWS[0]["prompt"][0]] * 2
    assert [row["id"] for row in changed] == ["a:x !", "b:x !"]
    assert {row["family"] for row in changed} == {"g"}
    assert [json.loads(row["metadata"]) for row in changed] == [{"k": 1}] * 2
    same = make(use="instructed", of=f"{__name__}:given")
    assert [(row["prompt"], row["family"]) for row in same] == [(row["prompt"], "f") for row in ROWS]


@pytest.fixture
def ask(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data", "prompts", ROWS)

    def ask_them(texts, **options):
        monkeypatch.setattr("learning.problems.solve_rates.sample_replies", lambda *_, **__: texts)
        use = {"use": "own_knowledge", "data": "q", "model": "m", "of": "answers.exact", **options}
        inputs = {"problems.0.data": tmp_path / "data", "problems.0.model": tmp_path}
        return bind(ProblemsUse.model_validate(use), "problems.0", inputs)()

    return ask_them


def test_the_label_is_whether_the_model_solves_it_often_enough(ask):
    rows = ask([["a", "a", "x"], ["x", "b", "x"]], asked="Known? {prompt}", yes="Y", no="N")
    assert [(row["answer"], json.loads(row["metadata"])["solve_rate"]) for row in rows] == [("Y", 2 / 3), ("N", 1 / 3)]
    assert [row["prompt"][0]["content"] for row in rows] == ["Known? s\na?", "Known? s\nb?"]
    assert [row["answer"] for row in ask([["a", "x"], ["b", "x"]], threshold=0.5)] == ["yes", "yes"]
    assert [row["answer"] for row in ask([["a", "x"], ["b", "b"]], threshold=1.0)] == ["no", "yes"]


def test_problems_without_a_rate_are_refused(ask):
    with pytest.raises(StepError, match="row b exceeds the model's context"):
        ask([["a"], None])
    with pytest.raises(StepError, match="row a has answers without a score"):
        ask([["a"], ["b"]], of="answers.last_number")

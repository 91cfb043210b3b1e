import pytest

from learning.data.expectations import measure_expectations, require_expectations
from learning.data.rows import write_rows
from schemas.errors import StepError
from schemas.expectations import parse_bound, parse_measure
from schemas.stages.curate import Curate
from schemas.stages.data import Data
from tasks.context import Context
from tasks.curate import run as curate
from tests.tasks.data_stages import convert, line


def row(number, question, answer):
    rest = {"answer": None if number % 2 else "x", "family": "f", "metadata": "{}"}
    prompt = [{"role": "user", "content": question}]
    return {"id": str(number), **rest, "prompt": prompt, "completion": [{"role": "assistant", "content": answer}]}


ROWS = [row(1, "a", "four"), row(2, "a", ""), row(3, "bb", "sixsix"), row(4, "c", "x" * 10)]
MEASURED = {
    "rows": 4,
    "null(prompt)": 0,
    "null(completion)": 1,
    "null(answer)": 2,
    "null(source)": 4,
    "unique(id)": 1.0,
    "unique(prompt)": 0.75,
    "unique(family)": 0.25,
    "mean(len(completion))": 5.0,
    "min(len(prompt))": 1,
    "max( len( completion ) )": 10,
    "mean(len(answer))": 0.5,
}


def test_measures_are_those_of_the_rows(tmp_path):
    write_rows(tmp_path, "chat", ROWS)
    measures = measure_expectations(MEASURED, tmp_path, "chat", tmp_path / "spill", 1)
    assert {one["name"]: one["measured"] for one in measures} == MEASURED
    assert all(one["holds"] for one in measures)


@pytest.mark.parametrize(
    ("bound", "holds"), [(">= 4", True), ("> 4", False), ("<=4", True), ("< 4.5", True), ("!= 4", False), ("4", None)]
)
def test_numbers_are_compared_as_written(tmp_path, bound, holds):
    write_rows(tmp_path, "chat", ROWS)
    if holds is None:
        with pytest.raises(ValueError, match="neither a number nor a comparison"):
            parse_bound(bound)
    else:
        assert measure_expectations({"rows": bound}, tmp_path, "chat", tmp_path / "s", 1)[0]["holds"] is holds


def test_what_does_not_hold_is_named_with_the_number(tmp_path):
    write_rows(tmp_path, "chat", ROWS)
    expect = {"rows": 4, "mean(len(completion))": ">= 20", "null(completion)": 0}
    measures = measure_expectations(expect, tmp_path, "chat", tmp_path / "spill", 1)
    with pytest.raises(StepError) as error:
        require_expectations("data", measures)
    assert str(error.value).splitlines() == [
        "data: 2 of 3 expectations do not hold:",
        "    mean(len(completion)) is 5, expected >= 20",
        "    null(completion) is 1, expected == 0",
    ]
    with pytest.raises(StepError, match="rows of type chat have no column chosen"):
        measure_expectations({"null(chosen)": 0}, tmp_path, "chat", tmp_path / "spill", 1)


WRONG = {
    "count(*)": "is no measure",
    "null(prompt) or 1": "is no measure",
    "__import__('os')": "is no measure",
    "null(text)": "no column `text`; columns are id",
    "null(len(prompt))": r"write `null\(prompt\)`",
    "mean(prompt)": r"write `mean\(len\(prompt\)\)`",
    "mean(len(margin))": r"write `mean\(margin\)`",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=WRONG)
def test_anything_but_a_measure_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_measure(text)
    with pytest.raises(ValueError, match=message):
        Data.model_validate({"kind": "data", "sources": [{"from": "path:x"}], "expect": {text: 1}})


def test_a_step_fails_if_its_rows_are_not_as_expected(tmp_path):
    files = {"a.jsonl": "\n".join(line(f"{i}?", str(i)) for i in range(3))}
    _, result, _ = convert(tmp_path / "1", files, stage={"expect": {"rows": ">= 3", "unique(id)": 1.0}})
    assert [one["measured"] for one in result.details["expectations"]] == [3, 1]
    with pytest.raises(StepError, match=r"data: 1 of 1 expectations do not hold:\n    rows is 3, expected >= 1000"):
        convert(tmp_path / "2", files, stage={"expect": {"rows": ">= 1000"}})
    stage = Curate.model_validate({"kind": "curate", "data": "d", "expect": {"rows": "> 3"}})
    (tmp_path / "c").mkdir()
    context = Context({"data": tmp_path / "1/work/outputs/data"}, tmp_path / "c", tmp_path / "k", seed=0)
    with pytest.raises(StepError, match="curate: 1 of 1 expectations do not hold"):
        curate(stage, context)

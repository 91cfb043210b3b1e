import pytest

from learning.problems.written import written
from schemas.errors import StepError

LINES = '{"question": "a?", "answer": "b"}\n\n{"question": "c?", "answer": "d", "more": 1}\n'


def test_every_line_is_a_problem(tmp_path):
    (tmp_path / "q.jsonl").write_text(LINES)
    first, second = written(data=tmp_path, file="q.jsonl", family="f", instruction="Say: ")
    assert first["prompt"] == [{"role": "user", "content": "Say: a?"}]
    assert (first["answer"], first["family"], second["answer"]) == ("b", "f", "d")
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"question": "a"}', '{"question": "a", "answer": 3}', '{"question": null, "answer": "a"}']
)
def test_a_line_that_is_no_problem_is_named(line, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "a?", "answer": "b"}\n' + line)
    with pytest.raises(StepError, match=r"q\.jsonl:2"):
        written(data=tmp_path, file="q.jsonl", family="f")


def test_a_file_outside_the_folder_is_not_read(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "q.jsonl").write_text('{"question": "a?", "answer": "b"}')
    with pytest.raises(StepError, match=r"has no \.\./q\.jsonl"):
        written(data=tmp_path / "in", file="../q.jsonl", family="f")

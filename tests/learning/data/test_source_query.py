import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learning.data.sources.query import read_query
from learning.data.sources.source_rows import SourceRows
from schemas.errors import StepError
from schemas.stages.data import Source

ROWS = [
    {"id": 1, "day": "2024-01-01", "at": "10:11:12.5", "code": "007", "tags": ["a"], "extra": {"a": None, "b": 1}},
    {"id": 2, "day": "2024-01-02", "at": None, "code": "008", "tags": [], "extra": {"a": "x"}},
]


def write(folder, name, content):
    (folder / name).write_text(content)
    return [folder / name]


def run(folder, query, **tables):
    return [record.values for record in read_query(query, tables, folder)]


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path, "rows.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))


def test_values_of_json_are_those_that_are_written(tmp_path, rows):
    expected = [{**ROWS[0], "extra": {"b": 1}}, {k: v for k, v in ROWS[1].items() if v is not None}]
    assert run(tmp_path, "from rows", rows=rows) == expected


def test_fields_of_several_types_keep_their_values(tmp_path):
    contents = ["hi", [{"type": "text", "text": "hi"}], 3]
    lines = [json.dumps({"messages": [{"role": "user", "content": content}]}) for content in contents]
    made = run(tmp_path, "from rows", rows=write(tmp_path, "m.jsonl", "\n".join(lines)))
    assert [row["messages"][0]["content"] for row in made] == contents


def test_tables_of_three_formats_are_joined(tmp_path, rows):
    answers = write(tmp_path, "a[1]*.csv", "id,answer\n1,007\n2,'8'\n")
    pq.write_table(pa.table({"id": [1, 2], "score": [0.5, 0.25]}), tmp_path / "s.parquet")
    query = """select code, answer, score, 1.5 as half, date '2024-01-01' + 1 as day
        from rows join answers on rows.id = answers.id::int join scores on scores.id = rows.id order by rows.id desc"""
    made = run(tmp_path, query, rows=rows, answers=answers, scores=[tmp_path / "s.parquet"])
    day = "2024-01-02 00:00:00"
    assert [[str(row["day"])[:10], *list(row.values())[:-1]] for row in made] == [
        [day[:10], "008", "'8'", 0.25, 1.5],
        [day[:10], "007", "007", 0.5, 1.5],
    ]


REFUSED = {
    "no SQL": ("selec", "syntax error"),
    "unknown column": ("select nothing from rows", '"nothing" not found'),
    "two statements": ("from rows; from rows", "2 statements"),
    "no select": ("copy rows to 'out.csv'", "is no SELECT"),
    "extension": ("install httpfs", "is no SELECT"),
    "chance": ("select random() as prompt", "random depends on time or chance"),
    "chance inside": ("with a as (select lower(uuid()::text) as t) from a", "uuid depends on time or chance"),
    "clock": ("select current_date as prompt", "current_date depends on time or chance"),
    "sample": ("from rows using sample 1", "needs a seed"),
    "columns": ("select id, id from rows", "two columns are called 'id'"),
    "value": ("select code::int / 0 as x, day::int as y from rows", "Conversion Error"),
}


@pytest.mark.parametrize(("query", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_query_is_refused(tmp_path, rows, query, message):
    with pytest.raises(StepError, match=r"^query: ") as refused:
        run(tmp_path, query, rows=rows)
    assert message in str(refused.value)
    assert not (tmp_path / "out.csv").exists()


def test_a_query_reads_its_tables_only(tmp_path, rows):
    secret = write(tmp_path, "secret.csv", "a\nb\n")[0]
    local = pa.table({"a": [1]})
    for table in (f"'{secret}'", f"read_csv('{secret}')", f"read_text('{secret}')", f"glob('{tmp_path}/*')", "local"):
        with pytest.raises(StepError, match=r"Permission|does not exist"):
            run(tmp_path, f"from {table}", rows=rows)
    assert local.num_rows == 1


def test_formats_without_a_table_are_refused(tmp_path):
    with pytest.raises(StepError, match=r"notes.txt: a query reads Parquet, CSV"):
        run(tmp_path, "from rows", rows=write(tmp_path, "notes.txt", "x"))
    mixed = [*write(tmp_path, "a.csv", "a\n1\n"), *write(tmp_path, "a.jsonl", "{}\n")]
    with pytest.raises(StepError, match="several formats"):
        run(tmp_path, "from rows", rows=mixed)


def test_its_columns_decide_the_format_and_its_rows_are_numbered(tmp_path):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "q.csv", "q,a\n1+1?,2\n2+2?,4\n3+3?,\n")
    query = "select q as prompt, a as completion from rows where a <> '2' or a is null"
    source = SourceRows(tmp_path / "in", Source.model_validate({"from": "path:in", "query": query}), "chat")
    records = list(source.rows())
    assert source.format == "prompt_completion"
    assert source.convert_record(records[0])["id"] == "query:1"
    assert [record.place for record in records] == ["query, row 1", "query, row 2"]


def test_names_of_tables_are_checked():
    for tables, message in (({"rows": "a"}, "another name"), ({'a"b': "a"}, "no name of a table")):
        with pytest.raises(ValueError, match=message):
            Source.model_validate({"from": "a", "query": "from rows", "tables": tables})
    with pytest.raises(ValueError, match="read by a `query` only"):
        Source.model_validate({"from": "a", "tables": {"b": "a"}})

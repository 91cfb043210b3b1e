"""What tools answer, and what they refuse: by independent arithmetic, and by what must not happen."""

import json
import sqlite3
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.sandbox.run import available
from learning.tools import calls as tools
from learning.tools import tables
from learning.tools.arithmetic import calculate
from learning.tools.retrieval import Index

THINGS = {"things": [{"name": "bora", "kg": 417}, {"name": "zemu", "kg": 62}, {"name": "kilo", "kg": None}]}
LINES = ["bora weighs 417", "zemu weighs 62", "boro weighs 9"]


def row(**notes):
    return {"id": "1", "metadata": json.dumps(notes)}


NUMBERS = st.integers(0, 9999).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=8,
)


def exactly(text):
    """The same by Python's own evaluation over fractions."""
    import re

    return eval(re.sub(r"(\d+)", r"Fraction(\1)", text), {"Fraction": Fraction})


@given(EXPRESSIONS)
def test_the_calculator_is_exact(text):
    try:
        want = Fraction(exactly(text))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero"):
            calculate(text)
        return
    got = calculate(text)
    assert got == (str(want.numerator) if want.denominator == 1 else format(float(want), ".10g"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("417*23", "9591"),
        ("7/2", "3.5"),
        ("0.1 + 0.2", "0.3"),
        ("2**-3", "0.125"),
        ("-(3 - 5)*2", "4"),
        ("10**30 + 1", "1" + "0" * 29 + "1"),
        ("-7 // 2", "-4"),
        ("7 % -3", "-2"),
        ("1.5 // 1", "1"),
    ],
)
def test_the_calculator_knows_what_it_says(text, value):
    assert tools.calculator(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "1 2",
        "()",
        "3(4)",
        "1.2.3",
        "007",
        "...",
        "x",
        "1e9",
        "1 if 2",
        "__import__('os')",
        "(1).real",
        "9**9**9**9",
        "2**4097",
        "2**0.5",
        "0**-1",
        "10**400/3",
        "9" * 201,
        "2**4000*2**4000",
    ],
)
def test_the_calculator_refuses_everything_else(text):
    with pytest.raises(ValueError, match=r"."):
        tools.calculator(text)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("select kg from things where name = 'bora'", "417"),
        ("select sum(kg), count(*) from things", "479 | 3"),
        ("select name, kg from things order by kg desc", "bora | 417\nzemu | 62\nkilo | null"),
        ("select name from things where kg > 999", "no rows"),
        ("with big as (select * from things where kg > 100) select upper(name) from big", "BORA"),
    ],
)
def test_sql_reads_the_tables_of_the_problem_or_of_the_recipe(query, found):
    assert tools.sql(query, row(tables=THINGS)) == found
    assert tools.sql(query, row(), tables=THINGS) == found


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("insert into things values ('x', 1)", "not authorized"),
        ("update things set kg = 1", "not authorized"),
        ("delete from things returning *", "not authorized"),
        ("drop table things", "not authorized"),
        ("create table more (x)", "not authorized"),
        ("attach 'there' as other", "not authorized"),
        ("vacuum into 'there'", "VACUUM"),
        ("pragma query_only = 0", "not authorized"),
        ("select load_extension('there')", "not authorized"),
        ("select randomblob(9)", "not authorized"),
        ("select current_timestamp", "not authorized"),
        ("select 1; drop table things", "one statement"),
        ("select * from nowhere", "no such table"),
        (f"select '{'x' * 20_000}'", "too big"),
        ("with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c", "too long"),
    ],
)
def test_sql_neither_writes_nor_runs_on_nor_says_two_things_of_one_question(query, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=why):
        tools.sql(query, row(tables=THINGS))
    assert list(tmp_path.iterdir()) == []


def test_sql_shows_so_many_rows_and_says_that_there_are_more():
    many = {"n": [{"i": i} for i in range(5)]}
    assert tools.sql("select i from n", row(tables=many), longest=3) == "0\n1\n2\n..."
    assert tools.sql("select i from n", row(tables=many), longest=5) == "0\n1\n2\n3\n4"


def test_the_bound_on_a_query_is_a_count_and_not_a_time():
    """A query of a known number of instructions passes at a bound above it and fails below, on any machine."""
    counted = "with recursive c(x) as (select 1 union all select x + 1 from c limit 2000) select max(x) from c"
    seen = []
    with sqlite3.connect(":memory:") as connection:
        connection.set_progress_handler(lambda: seen.append(1) and False, tables.STEPS)
        connection.execute(counted).fetchall()
    connection.close()
    assert len(seen) > 3
    assert tables.run_query(counted, {}, rows=1, work=len(seen)) == "2000"
    with pytest.raises(ValueError, match="too long"):
        tables.run_query(counted, {}, rows=1, work=len(seen) - 1)


def test_search_finds_the_document_that_looks_most_like_the_query():
    assert tools.search("bora", row(documents=LINES)) == "bora weighs 417"
    assert tools.search("boro weighs", row(), documents=LINES) == "boro weighs 9"
    assert tools.search("ZEMU", row(), documents=[line.title() for line in LINES]) == "Zemu Weighs 62"
    assert tools.search("boro", row(documents=LINES), top=2) == "boro weighs 9\nbora weighs 417"
    assert tools.search("zemu weighs 62", row(documents=LINES)) == "zemu weighs 62"
    with pytest.raises(ValueError, match="the query is empty"):
        tools.search(" ", row(documents=LINES))
    with pytest.raises(ValueError, match="no documents to search"):
        tools.search("bora", row())


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_python_runs_in_the_sandbox_and_says_what_went_wrong():
    assert tools.python("print(sum(map(int, str(417 * 23))))") == "24"
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        tools.python("1 / 0")
    with pytest.raises(ValueError, match="second"):
        tools.python("while True: pass", seconds=0.5)


def test_bm25_ranks_by_words_and_rare_ones_count_more():
    """Closed form of Okapi BM25 with k1 = 1.2 and b = 0.75, without the factor k1 + 1; three texts of 3 words."""
    import math

    texts = ["bora weighs bora", "zemu weighs 62", "kilo weighs 9"]
    index = Index(texts)
    rare, common = math.log(1 + 2.5 / 1.5), math.log(1 + 0.5 / 3.5)
    assert index.score("bora weighs")[0] == pytest.approx(rare * 2 / (2 + 1.2) + common / (1 + 1.2))
    assert index.score("Bora, weighs!")[1] == pytest.approx(common / (1 + 1.2))
    assert Index(["a b", "a b c d"]).score("a")[1] == pytest.approx(
        math.log(1 + 0.5 / 2.5) / (1 + 1.2 * (0.25 + 0.75 * 4 / 3))
    )
    assert [texts[place] for place in index.rank("weighs zemu", 2)] == ["zemu weighs 62", "bora weighs bora"]
    assert index.rank("bor", 2) == index.rank("", 2) == Index(["", "?!"]).rank("bora", 2) == []


def test_search_can_read_another_list_and_rank_by_words():
    about = row(documents=LINES, cards=["card one", "card two"])
    assert tools.search("boro weighs", about, ranking="bm25") == "boro weighs 9"
    assert tools.search("two", about, field="cards", ranking="bm25") == "card two"
    assert tools.search("crd two", about, field="cards") == "card two"
    with pytest.raises(ValueError, match="no document has one of these words"):
        tools.search("bor", about, ranking="bm25")
    with pytest.raises(ValueError, match="no documents"):
        tools.search("two", row(documents=LINES), field="cards")


def test_recorded_replies_are_those_of_the_problem():
    about = row(replies={"find": {"ann": "417"}})
    assert tools.recorded(" ann ", about, of="find") == "417"
    assert tools.recorded("bob", about, of="find", otherwise="nobody") == "nobody"
    for query, of in (("bob", "find"), ("ann", "agenda")):
        with pytest.raises(ValueError, match=f"no reply to '{query}'"):
            tools.recorded(query, about, of=of)
    with pytest.raises(ValueError, match="no reply"):
        tools.recorded("ann", row(), of="find")

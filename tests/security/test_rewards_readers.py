"""What reads a model's text beside rewards: environments, tools, extractors, filters, authors, programs, metrics."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from learning.agents.asking import DEEPEST, find_object
from learning.agents.extractors import add_experience, first_difference
from learning.api.requests import Answer
from learning.curation import row_filters as quality
from learning.data.patterns import MatchTimeout, Pattern
from learning.data.questions import Inquiry
from learning.data.text_edits import mistaken
from learning.environments.tools import Environment as ToolsEnvironment
from learning.evaluation import metrics
from learning.lookup import bind
from learning.solvers import solvers as programs
from learning.tools import calls as tools
from learning.tools.retrieval import Shelf
from learning.tools.tables import count_copies, run_query
from learning.toy_tasks import fits as fits_world
from learning.toy_tasks.environments.form import Environment as FormEnvironment
from learning.toy_tasks.environments.guess import Environment as GuessEnvironment
from learning.toy_tasks.fits import fits
from learning.toy_tasks.forms import forms
from learning.toy_tasks.guesses import guesses
from learning.toy_tasks.tracing import trace_tasks
from schemas.errors import StepError
from schemas.use import ToolUse
from tests.security.hostile import enormous, hostile

BOMB = r"(a|aa)+$"
BAIT = "a" * 5000 + "b"
SECONDS = 20.0
THINGS = {"things": [{"name": "a" * 50, "kg": n} for n in range(50)]}


@pytest.fixture
def texts(tmp_path):
    made = [*hostile(str(tmp_path / "canary")), *enormous()[::6]]
    yield made
    assert not (tmp_path / "canary").exists()


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    monkeypatch.setattr("learning.data.patterns.SECONDS", 0.1)
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


def said(ask, *args, **options):
    """What comes of a question: an answer, or the words of a ValueError."""
    try:
        return ask(*args, **options)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("environment", [FormEnvironment, GuessEnvironment])
def test_environments_answer_any_text(environment, texts):
    (row,) = (forms if environment is FormEnvironment else guesses)(size=1, split="train")
    for text in texts:
        outcome = environment().begin(row, 0).step(text)
        assert outcome.reward in (0.0, 1.0)


@pytest.mark.parametrize("call", [None, r"(\w+)+:((?:.|\n)*)*", r"((a|aa)+)$|(.*)"])
def test_tools_answer_whatever_is_asked(call, texts):
    named = [bind(ToolUse(use=name)) for name in ("calculator", "search", "sql")]
    how = {} if call is None or call.count("(") != 2 else {"call": call}
    environment = ToolsEnvironment(tools=named, **how)
    documents = [f"{n} weighs {n * n}" for n in range(300)]
    row = {"id": "q", "metadata": json.dumps({"documents": documents, "tables": THINGS})}
    for text in texts if call is None else texts[:60]:
        for turn in (text, f"calculator: {text}", f"sql: {text}", f"search: {text}"):
            outcome = environment.begin(row, 0).step(turn)
            assert len(outcome.observation) <= environment.longest + 3 + 200
    assert environment.begin(row, 0).step("calculator: 2*(3+4)").observation == "14"


@pytest.mark.parametrize(
    "query",
    [
        "1" + "*9" * 99,
        "9**9**9**9",
        "2**4096*2**4096",
        "(" * 99 + "1" + ")" * 99,
        "1**" + "9" * 190,
        "0**(0-1)",
        "...",
        "-" * 199 + "1",
        "9." * 99,
        "1/3" + "**9" * 50,
        "2**(0-4096)/3**2580",
        "9" * 190 + ".0",
        "٣+٣",
        "1%%1",
        "1//0",
    ],
)
def test_arithmetic_is_short_or_refused(query):
    assert len(said(tools.calculator, query)) < 1300


DOUBLED = [
    "t0 as (select 1)",
    *(f"t{i} as (select * from t{i - 1} union all select * from t{i - 1})" for i in range(1, 25)),
]
COUNTING = "with recursive c(x) as (select 1 union all select x+1 from c)"
BIG = "replace(replace(replace('aaaaaaaaaa','a','aaaaaaaaaa'),'a','aaaaaaaaaa'),'a','aaaaaaaaa')"


@pytest.mark.parametrize(
    "query",
    [
        f"with {', '.join(DOUBLED)} select count(*) from t24",
        f"WITH/**/{', '.join(DOUBLED)} select count(*) from t24".replace("as (", "AS--\nmaterialized ("),
        f"with {', '.join(DOUBLED)} select count(*) from t24".replace("as (", 'as\n/*" */not materialized('),
        f"with {', '.join(DOUBLED)} select count(*) from t24".replace("t1 ", '"T1"  '),
        f"select {BIG} like '%a%a%a%a%a%a%ab'",
        f"select {BIG} glob '*a*a*a*a*a*a*ab'",
        f"{COUNTING} select sum(instr({BIG}||x,substr({BIG},1,4500)||'b'||x)) from c",
        f"{COUNTING} select {BIG}||x, count(*) from c group by 1",
        "select count(*) from " + ",".join(f"things a{n}" for n in range(60)),
        "select " + "(" * 4000 + "1" + ")" * 4000,
        "select " + "-" * 9000 + "1",
        "select " + "+".join("1" * 4000),
        "select '\ud800'",
        "select 1\0",
        "select x'" + "00" * 4000 + "'",
    ],
)
def test_queries_are_bounded_before_they_are_written_out(query):
    assert 0 < len(said(run_query, query, THINGS, rows=5, work=100)) < 100_000


def test_tables_of_a_query_may_be_named_as_often_as_one_needs():
    assert count_copies("select kg as a, kg as b, kg as c from things") == 1
    query = (
        "with a as (select kg from things), b as (select * from a, a x) select count(*), (select 1 from a) from b, b y"
    )
    assert count_copies(query) <= 1000
    assert run_query(query, {"things": [{"kg": 1}, {"kg": 2}]}, rows=1, work=100) == "16 | 1"


def test_a_query_far_longer_than_the_documents_finds_as_fast():
    shelf = Shelf([{"prompt": [{"content": f"{n} weighs {n * n}"}]} for n in range(1200)], 3)
    (nearest,) = shelf.nearest("".join(chr(0x4E00 + n % 20000) + str(n) for n in range(100_000)) + " weighs ", 1)
    assert "weighs" in nearest["prompt"][0]["content"]


@pytest.mark.parametrize("use", ["[\\s\\S]+", BOMB, r"(\w+)+x", r"((a)|b)"])
def test_extractors_read_any_text(use, texts):
    row = {"id": "q", "prompt": [{"role": "user", "content": "aab"}]}
    for text in [*texts[:220:5], BAIT] if use != "[\\s\\S]+" else texts:
        rollouts = [SimpleNamespace(actions=(text, "b")), SimpleNamespace(actions=("b",))]
        experiences = first_difference(row, rollouts, ["known"], action=use, subject=use)
        assert experiences[0] == "known"
        assert add_experience(["known"], text)[0] == "known"
        if use == BOMB and text == BAIT:
            break


def test_patterns_have_a_time_limit_and_mean_what_they_mean_in_python():
    for how in ("search", "fullmatch", "last"):
        with pytest.raises(MatchTimeout):
            getattr(Pattern(BOMB), how)(BAIT)
    row = {"completion": [{"content": BAIT}]}
    assert quality.matches(row, pattern=BOMB) is False
    assert quality.matches(row, pattern="aab") is True
    assert Inquiry(None, (), Pattern(BOMB)).kept(BAIT) is None
    with pytest.raises(StepError, match="quality filter matches"):
        quality.matches(row, pattern="(")
    import re

    for pattern, text in [
        (r"\\text{e}", r"\text{e}"),
        (r"\\text{e}", r"\texxx"),
        ("a{2,}b", "aaab"),
        ("a{,2}b", "aab"),
        ("x{}", "x{}"),
        ("[{e}]+", "e}{"),
        (r"\N{DIGIT ONE}{2}", "11"),
        (r"\{(.*?)\}", "{a}{b}"),
        ("a{e}", "a{e}"),
        ("(a)|b", "b"),
    ]:
        ours, theirs = Pattern(pattern).search(text), re.search(pattern, text)
        assert (ours and ours.span()) == (theirs and theirs.span()), pattern
        assert (Pattern(pattern).last(text) is None) == (theirs is None or theirs[theirs.re.groups and 1] is None)


@pytest.mark.parametrize("name", ["repetition", "compression", "symbol_ratio", "entropy", "printable", "words"])
def test_filters_judge_whatever_was_written(name, texts):
    for text in texts:
        row = {"prompt": [{"content": "?"}], "completion": [{"content": text}]}
        assert getattr(quality, name)(row) in (True, False)


def test_an_object_in_a_reply_is_one_or_a_value_error(texts):
    for text in [*texts, *('{"a":' * n + "1" + "}" * n for n in (DEEPEST - 1, DEEPEST + 1, 900, 100_000))]:
        outcome = said(find_object, text)
        assert isinstance(outcome, dict) or outcome.startswith(("the reply has no JSON", "the reply has a JSON"))
    assert find_object('so: {"a": [1, {"b": 2}]} there') == {"a": [1, {"b": 2}]}
    with pytest.raises(ValueError, match="nested more than"):
        find_object('{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1))
    with pytest.raises(ValueError, match="no JSON object"):
        find_object('{"a":' * 100_000 + "1" + "}" * 100_000)


def test_programs_put_answers_together_whatever_they_are(texts):
    for text in texts:
        assert isinstance(programs.total([text, "1"], ","), str)
        assert isinstance(programs.crossed(text, ","), str)
    assert programs.total(["9" * 1000, "1"], ",") == str(10**1000)
    assert programs.crossed("a,b", ",") == "a:b,b:a"
    row = {"id": "q", "prompt": [{"role": "user", "content": "how many|a,b"}]}
    assert programs.lambda_rlm([row], lambda rows: [BAIT] * len(rows), window=9, keep=BOMB, combine="joined") == [""]


def test_answers_are_counted_whatever_they_are(texts):
    text_PN, correct_PN = np.array([texts], dtype=object), np.ones((1, len(texts)))
    assert metrics.cons(correct_PN, text_PN, k=len(texts)).shape == (1,)
    assert metrics.distinct(correct_PN, text_PN)[0] > 200


def test_a_fit_may_be_as_far_away_as_numbers_go():
    (row,) = fits(size=1, split="train")
    table = fits_world.make_table(row)
    for value in (1e308, -1e308, 1e160, 1e150):
        assert 0 <= fits_world.score_predictions([value] * 20, table) < 1e-9
    assert fits_world.score_predictions([float("inf")] * 20, table) is None


def test_mistakes_and_traces_of_whatever_is_written(texts):
    rng = np.random.default_rng(0)
    for text in texts[::3]:
        assert mistaken(text, rng) != ""
    row = {"id": "q", "metadata": json.dumps({"tests": [[{"a": 1, "b": 2}, 3]]})}
    samples = [SimpleNamespace(row=row, source="policy", text=text) for text in texts]
    assert len(trace_tasks(samples, 0, rng)[1]) <= 8


def test_a_kept_answer_is_read_back(texts):
    from learning.api.requests import load_answer

    for text in texts[::5]:
        answer = Answer(text, "stop", 1, 1)
        assert load_answer(answer.dump()) == answer

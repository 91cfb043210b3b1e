"""Tools over a corpus of one's own: ranked by a formula of its own, read by pages, named by a recipe."""

import json
from math import log

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.planning.recipe_plan import plan_recipe
from flows.runs.start import start_run
from learning.data.messages import MESSAGES
from learning.environments.lookup_environment import build_environment
from learning.tools.corpora import load_corpus, read_document, search_corpus
from learning.tools.retrieval import split_words
from lineage.layout import Layout
from schemas.use import EnvUse

TEXTS = {
    "ada": "Ada Lovelace wrote the first program for the engine of Babbage",
    "babbage": "Charles Babbage was born in London and designed the engine; the engine was never built",
    "london": "London lies on the Thames",
    "empty": "",
}
RECIPE = """
vars:
  env:
    use: tools
    tools: [{use: search_corpus, corpus: wiki, top: 2}, {use: read_document, corpus: wiki}]
    max_turns: 4
    longest: 200
stages:
  base: {kind: init, tokenizer: {use: characters}, max_length: 512}
  wiki: {kind: data, sources: [{from: "path:./wiki.jsonl", columns: {text: "{title}: {body}"}}]}
  questions: {kind: data, emit: prompts, sources: [{from: "path:./questions.jsonl"}]}
  report:
    kind: evaluate
    models: {base: base}
    prompts: questions
    env: "${vars.env}"
    max_completion_length: 8
"""


@pytest.fixture
def corpus(tmp_path):
    """An artifact of kind data, one row per document."""
    rows = [
        {
            "id": name,
            "prompt": [],
            "answer": None,
            "family": "text",
            "metadata": "{}",
            "completion": [{"role": "assistant", "content": text, "more": None}],
        }
        for name, text in TEXTS.items()
    ]
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("id", "answer", "family", "metadata")),
            ("prompt", MESSAGES),
            ("completion", MESSAGES),
        ]
    )
    (tmp_path / "corpus").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "corpus" / "rows.parquet")
    return str(tmp_path / "corpus")


def score(query, text, k1=1.2, b=0.75):
    """Okapi BM25 as Robertson and Zaragoza (2009) write it, over the four documents, without the constant k1 + 1."""
    mean = sum(len(split_words(t)) for t in TEXTS.values()) / len(TEXTS)
    total = 0.0
    for word in split_words(query):
        holding = sum(word in split_words(t) for t in TEXTS.values())
        count, length = split_words(text).count(word), len(split_words(text))
        rarity = log(1 + (len(TEXTS) - holding + 0.5) / (holding + 0.5))
        total += rarity * count / (count + k1 * (1 - b + b * length / mean))
    return total


@pytest.mark.parametrize("query", ["engine", "the engine of Babbage", "LONDON thames", "born engine", "the the the"])
def test_documents_are_ranked_by_the_formula(query, corpus):
    expected = sorted((name for name in TEXTS if score(query, TEXTS[name])), key=lambda n: -score(query, TEXTS[n]))
    assert load_corpus(corpus).rank(query, 9) == expected
    assert load_corpus(corpus).index.score(query) == pytest.approx([score(query, t) for t in TEXTS.values()], rel=1e-12)


def test_hits_are_lines_with_an_id_that_can_be_read(corpus):
    found = search_corpus("engine", corpus=corpus, shown=20).splitlines()
    assert found == ["[babbage] Charles Babbage was…", "[ada] Ada Lovelace wrote t…"]
    assert search_corpus("thames", corpus=corpus, top=1) == "[london] London lies on the Thames"
    for query in ("london", "[london]", " london \n"):
        assert read_document(query, corpus=corpus) == TEXTS["london"]
    pages = [read_document(f"[ada] page {n}", corpus=corpus, longest=30) for n in (1, 2, 3)]
    assert [page.splitlines()[-1] for page in pages] == [f"(page {n} of 3)" for n in (1, 2, 3)]
    assert "".join(page.rpartition("\n")[0] for page in pages) == TEXTS["ada"]
    assert read_document("empty", corpus=corpus) == ""


@pytest.mark.parametrize(
    ("tool", "query", "message"),
    [
        (search_corpus, " ", "the query is empty"),
        (search_corpus, "zebra !?", "no document has one of these words"),
        (search_corpus, "'); drop", "no document has one of these words"),
        (read_document, "paris", "no document 'paris'; ids are what a search shows in brackets"),
        (read_document, "ada page 9", "ada has 1 pages"),
        (read_document, "x" * 5000, "no document 'x{40}'"),
    ],
)
def test_what_is_not_there_is_an_error_that_the_model_reads(tool, query, message, corpus):
    with pytest.raises(ValueError, match=message):
        tool(query, corpus=corpus)


def test_episodes_search_and_read_and_errors_do_not_end_them(corpus):
    env = {"use": "tools", "tools": [{"use": "search_corpus", "corpus": "c"}, {"use": "read_document", "corpus": "c"}]}
    ports = {"env.tools.0.corpus": corpus, "env.tools.1.corpus": corpus}
    play = build_environment(EnvUse.model_validate(env), ports).begin({"id": "q", "prompt": [], "metadata": "{}"}, 0)
    assert play.step("search_corpus: thames").observation == "[london] London lies on the Thames"
    wrong = play.step("read_document: paris")
    assert (wrong.done, wrong.ok) == (False, False)
    assert "no document 'paris'" in wrong.observation
    assert play.step("read_document: london").observation == TEXTS["london"]
    assert play.step("it is London").done


def test_a_recipe_names_files_of_ones_own(tmp_path):
    """The corpus is a stage of kind data; its content is part of the key of what searches it."""
    rows = [{"id": n, "title": n, "body": text} for n, text in TEXTS.items() if text]
    (tmp_path / "wiki.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "questions.jsonl").write_text(
        json.dumps({"prompt": "Where was Babbage born?", "answer": "London"}) + "\n"
    )
    (tmp_path / "r.yaml").write_text(f"name: r\nseed: 1\n{RECIPE}")
    layout = Layout(tmp_path)
    outcome = start_run(plan_recipe(tmp_path / "r.yaml", layout), layout, "inprocess", Console(quiet=True))
    assert {name: state.state for name, state in outcome.states.items()} == dict.fromkeys(outcome.states, "done")
    before = plan_recipe(tmp_path / "r.yaml", layout).step("report").key
    (tmp_path / "wiki.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    assert plan_recipe(tmp_path / "r.yaml", layout).step("report").key != before

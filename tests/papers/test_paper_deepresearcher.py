"""DeepResearcher: research over HTTP with a cache and retries, a reading agent, and the F1 of what is answered.

Turns are dictated; environment, reader, rewards and the curation are those of the recipe, the site is that of
`data/servers/pages`. Not shown: noise of the live web.
"""

import importlib.util
import json
from functools import wraps
from pathlib import Path

import httpx
import pytest

from learning.curation import row_scores
from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.models.policy import Policy
from learning.sampling.scoring import scores_of
from learning.toy_tasks import site
from learning.toy_tasks.atlas import list_texts, make_atlas
from schemas.recipe.load import load_recipe
from schemas.use import EnvUse
from tasks.context import Context
from tasks.curate import run
from tests.page_sites import SERVER, serve_pages
from tests.papers.dictated import play

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "deepresearcher.yaml")
STAGES = LOADED.stages
TRAINED, LOCAL, REPORT = (STAGES[name] for name in ("trained", "local", "report"))
PAGES = json.loads((SERVER.parent / "pages.json").read_text())
QUESTIONS = bind(STAGES["all_questions"].problems[0])()


@pytest.fixture
def policy(tiny_policy):
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def research(policy, url, row, *scripts):
    """Episodes of a question in the recipe's environment, at a site that runs already."""
    settings = TRAINED.env.model_dump(mode="json", exclude={"command", "folder"})
    env = EnvUse.model_validate({name: value for name, value in settings.items() if value is not None} | {"url": url})
    return play(policy, TRAINED, row, scripts, env=env)


def find_page(row):
    words = " ".join(reversed(row["prompt"][0]["content"].removesuffix("?").split(" of ")))
    (address,) = (address for address, page in PAGES.items() if page["title"] == words)
    return address, words


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<answer>red fox den</answer>", 0.8),
        ("<answer>red fox</answer>", 1.0),
        ("so <answer>blue</answer>", 0.0),
        ("<answer>blue</answer> or <answer>red fox</answer>", 1.0),
        ("red fox", -1.0),
        ("<answer>red fox", -1.0),
        ("red fox</answer>", -1.0),
        ("", -1.0),
    ],
)
def test_the_reward_is_the_f1_of_the_words_of_the_answer_and_minus_one_without_its_form(text, reward):
    for stage in (TRAINED, LOCAL, REPORT):
        (use,) = (bind(one) for one in stage.rewards)
        row = {"id": "a", "answer": "red fox", "family": None}
        (score,) = scores_of(use, 0, {"rows": [row], "completions": [text]}, {})
        assert score == pytest.approx(reward)


def test_what_was_read_is_not_trained_on(policy):
    row = QUESTIONS[0]
    address, words = find_page(row)
    with serve_pages() as (url, _):
        turns = [f"search: {words}", f"read: {address} {words}", f"<answer>{row['answer']}</answer>"]
        (sample,), _ = research(policy, url, row, turns)
    own = [token for token, flag in zip(sample.completion_ids, sample.own, strict=True) if flag]
    said = policy.tokenizer.decode(own, skip_special_tokens=True)
    assert said == "".join(turns)
    assert [turn.observed > 0 for turn in sample.turns] == [True, True, False]


def test_equal_queries_make_one_request_and_failures_are_tried_again(policy):
    row = QUESTIONS[0]
    address, words = find_page(row)
    turns = [f"search: {words}", f"search: {words}", f"read: {address} {words}", f"<answer>{row['answer']}</answer>"]
    with serve_pages(fails=0.0) as (url, counts):
        samples, _ = research(policy, url, row, turns, turns)
        assert sorted(counts.values()) == [1, 1]
        assert [sample.reward for sample in samples] == [1.0, 1.0]
    with serve_pages(fails=1.0) as (url, counts):
        samples, _ = research(policy, url, row, turns, turns)
        assert sorted(counts.values()) == [2, 2]
        assert [sample.reward for sample in samples] == [1.0, 1.0]
        assert all(turn.ok for sample in samples for turn in sample.turns)
    assert TRAINED.env.options["command"][-2:] == ["--fails", "0.2"]


def test_the_site_of_another_world_has_the_names_of_its_questions():
    source = importlib.util.spec_from_file_location("pages_server", SERVER)
    server = importlib.util.module_from_spec(source)
    source.loader.exec_module(server)
    (of, own) = (
        {row["answer"] for row in site.site_questions(world=world, size=20, split="train")} for world in (3, 0)
    )
    assert not of & own
    for world in (0, 3, 12):
        facts = {text for page in server.rename(PAGES, world).values() for text in [page["title"], *page["paragraphs"]]}
        for row in site.site_questions(world=world, size=20, split="train"):
            kind, _, town = row["prompt"][0]["content"].removesuffix("?").partition(" of ")
            assert {f"{town} {kind}", f"{town} {kind} {row['answer']}"} <= facts
    assert server.rename(PAGES, 0) == PAGES


def test_half_of_the_failures_are_429_and_the_others_500():
    with serve_pages(fails=1.0) as (url, _), httpx.Client() as client:
        statuses, again = ([client.get(f"{url}/{address}").status_code for address in PAGES] for _ in range(2))
    assert 20 < statuses.count(429) < 40
    assert statuses.count(429) + statuses.count(500) == 60
    assert set(again) == {200}


def test_the_reader_stops_at_the_segment_with_the_answer_and_passes_on_its_notes_alone(policy, monkeypatch):
    seen, read = [], site.line_reader

    @wraps(read)
    def counted(row, rng, *, least=1):
        seen.append(row["prompt"][-1]["content"])
        return read(row, rng, least=least)

    monkeypatch.setattr(site, "line_reader", counted)
    places = set()
    with serve_pages(fails=1.0) as (url, _):  # the first request of each address fails, with 429 or with 500
        for row in QUESTIONS[:12]:
            address, words = find_page(row)
            seen.clear()
            _, contexts = research(policy, url, row, [f"read: {address} {words}", "x"])
            place = PAGES[address]["paragraphs"].index(f"{words} {row['answer']}")
            assert len(seen) == place + 1
            shown = contexts[0][-1]
            assert shown.endswith(f"{words} {row['answer']}")
            assert not any(text in shown for text in PAGES[address]["paragraphs"] if words not in text)
            places.add(place)
    assert places == {0, 1, 2, 3}
    assert TRAINED.env.use == "site"


def test_questions_that_the_model_answers_without_a_page_are_left_out(tmp_path, monkeypatch):
    """One right answer in ten tries is enough; nine wrong ones and a right one without its form are not."""
    for name in ("in", "out", "checkpoints"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "in", "prompts", QUESTIONS[:4])
    known, formless, *_ = (row["answer"] for row in QUESTIONS[:4])

    def say(judge, questions, *, n, sampling, rng):
        assert n == 10
        first = [f"<answer>{known}</answer>", formless, "<answer>no</answer>", ""]
        return [[text] + ["<answer>nothing</answer>"] * (n - 1) for text in first]

    monkeypatch.setattr(row_scores, "guest", lambda model: None)
    monkeypatch.setattr(row_scores, "replies", say)
    stage = STAGES["questions"]
    inputs = {port.path: tmp_path / "in" for port in LOADED.ports("questions") if port.path != "decontaminate"}
    run(stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0))
    made = tmp_path / "out" / "outputs" / "data"
    assert [row["id"] for row in read_rows(made, "prompts")] == [row["id"] for row in QUESTIONS[1:4]]
    assert (TRAINED.prompts, stage.data) == ("questions", "all_questions")


def test_the_site_has_a_page_of_several_paragraphs_for_each_of_sixty_facts():
    facts = list_texts(make_atlas(15, 0))
    assert len(PAGES) == len(facts) == 60
    assert [page["title"] for page in PAGES.values()] == [text.rpartition(" ")[0] for text in facts]
    assert all(
        fact in page["paragraphs"] and len(page["paragraphs"]) == 4
        for fact, page in zip(facts, PAGES.values(), strict=True)
    )
    tasks = bind(REPORT.tasks[0])()
    assert not {row["id"] for row in tasks} & {row["id"] for row in QUESTIONS}


def test_the_comparator_searches_documents_and_is_measured_at_the_site(policy):
    row = QUESTIONS[0]
    _, words = find_page(row)
    (sample,), contexts = play(policy, LOCAL, row, [[f"search: {words}", f"<answer>{row['answer']}</answer>"]])
    assert contexts[0][-1].endswith(f"{words} {row['answer']}")
    assert sample.reward == 1.0
    mine, other = (STAGES[name].model_dump(mode="json") for name in ("trained", "local"))
    assert {key for key in mine if mine[key] != other[key]} == {"env"}
    assert REPORT.env == TRAINED.env
    assert dict(REPORT.models) == {"start": "start", "trained": "trained", "local": "local"}
    assert TRAINED.algorithm == "grpo"

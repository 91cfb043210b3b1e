"""SearchGym: questions that documents answer, from single look-ups to chains, and a search that can be exchanged.

The graph, documents, questions, the filter, the batches and the searches are those of the recipe. Not shown: that an
agent learns more from it, or that it transfers.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.toy_tasks.knowledge_graph import RELATIONS, graph_walker, make_graph, read_document
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "searchgym.yaml"
STAGES = load_recipe(RECIPE).stages
FIRST, TRAINED, MIXED, REPORT, TRANSFER = (STAGES[n] for n in ("first", "trained", "mixed", "report", "transfer"))
(KEEP,) = (bind(use) for use in STAGES["easy"].filters)


def ask(stage):
    return [row for use in STAGES[stage].problems for row in bind(use)()]


@pytest.fixture(scope="module")
def asked():
    """The questions before the filter, and those that it keeps."""
    rows = [*ask("easy_questions"), *ask("hard_questions")]
    return rows, [row for row in rows if KEEP(row)]


def note(row, **changes):
    return row | {"metadata": json.dumps({**json.loads(row["metadata"]), **changes})}


def about(row):
    return json.loads(row["metadata"])


def walk(row, env=TRAINED.env):
    """Turns and results of the walker, which gets the prompt alone."""
    episode, messages, turns = build_environment(env, {}).begin(row, 0), list(row["prompt"]), []
    while True:
        blind = {"id": row["id"], "prompt": messages, "answer": None, "metadata": "{}"}
        turns.append(graph_walker(blind, np.random.default_rng(0)))
        outcome = episode.step(turns[-1])
        if outcome.done:
            return turns
        messages = [*messages, {"role": "assistant", "content": turns[-1]}]
        messages.append({"role": "user", "content": outcome.observation})


def test_a_walker_that_reads_what_it_finds_answers_every_kept_question(asked):
    rows, kept = asked
    assert all(walk(row)[-1] == row["answer"] for row in kept[::3])
    assert [len(walk(row)) for row in kept[-20:]] == [about(row)["hops"] + 1 for row in kept[-20:]]
    assert 0 < len(rows) - len(kept) < len(rows) / 4


def test_dropped_are_the_questions_through_a_fact_that_no_document_has(asked):
    rows, kept = asked
    documents = {text.partition(":")[0]: text for text in about(rows[0])["documents"]}
    graph = make_graph(100, 0)
    assert set(documents) == set(graph)
    assert len(RELATIONS) == 5
    for row in rows:
        chain = row["prompt"][0]["content"].removesuffix("?").split(" of ")[:-1][::-1]
        steps = list(zip(about(row)["path"], chain, strict=False))
        assert [graph[entity][relation] for entity, relation in steps] == about(row)["path"][1:]
        stated = all(relation in read_document(documents[entity], entity) for entity, relation in steps)
        assert stated == any(row["id"] == other["id"] for other in kept)


def test_without_a_document_exactly_the_questions_through_it_are_dropped(asked):
    _, kept = asked
    visits = [entity for row in kept for entity in about(row)["path"][:-1]]
    entity = max(set(visits), key=visits.count)
    through = {row["id"] for row in kept if entity in about(row)["path"][:-1]}
    assert len(through) >= 4
    for row in kept:
        left = [text for text in about(row)["documents"] if not text.startswith(f"{entity}:")]
        assert len(left) == 99
        assert KEEP(note(row, documents=left)) == (row["id"] not in through)
        if row["id"] in through:  # what another document says about someone else is no answer
            assert walk(note(row, documents=left))[-1] == "unknown"


def test_the_filter_believes_what_is_found_and_not_the_answer(asked):
    _, kept = asked
    row = next(row for row in kept if about(row)["hops"] == 2)
    entity, middle, last = about(row)["path"]
    relation = row["prompt"][0]["content"].split(" of ")[0]
    changed = [text.replace(f"{relation} {last}", f"{relation} xyz") for text in about(row)["documents"]]
    assert not KEEP(note(row, documents=changed))
    assert KEEP(note(row, documents=changed) | {"answer": "xyz"})
    with pytest.raises(StepError, match="has no answer to compare with"):
        KEEP(row | {"answer": None})
    assert entity != middle


def test_an_episode_that_does_not_end_answers_nothing(asked):
    _, kept = asked
    (use,) = STAGES["hard"].filters
    row = next(row for row in kept if about(row)["hops"] == 4)
    for turns, answered in ((5, True), (4, False)):
        short = use.model_copy(update={"env": {**use.options["env"], "max_turns": turns}})
        assert bind(short)(row) == answered


def list_families(name):
    """The families of the problems in the batches of a training stage."""
    stage, sampled = STAGES[name], set()
    rows = ask({"easy": "easy_questions", "hard": "hard_questions", "every": "all_questions"}[stage.prompts])
    sampler = bind(stage.prompt_sampler)
    groups = stage.generation_batch_size // stage.num_generations
    for step in range(stage.max_steps):
        asked = {"rows": rows, "num_groups": groups, "n": stage.num_generations, "seed": 0, "step": step}
        sampled |= {request.row["family"] for request in sampler.ask(step, asked)}
    return sampled


def test_single_hops_come_first_and_longer_chains_after_them():
    assert list_families("first") == {"graph1"}
    assert list_families("trained") == {"graph2", "graph3", "graph4"}
    assert list_families("mixed") == {"graph1", "graph2", "graph3", "graph4"}
    assert (FIRST.model, TRAINED.model, MIXED.model) == ("cold_start", "first", "cold_start")
    assert MIXED.max_steps == FIRST.max_steps + TRAINED.max_steps
    assert [STAGES[name].data for name in ("easy", "hard", "every")] == [
        "easy_questions",
        "hard_questions",
        "all_questions",
    ]
    same = [stage.model_dump(exclude={"model", "prompts", "max_steps"}) for stage in (FIRST, TRAINED, MIXED)]
    assert same[0] == same[1] == same[2]


def test_another_search_needs_no_other_model_or_prompt(asked, tiny_policy):
    """The same checkpoint under two names, in environments that differ in the ranking; both find the way."""
    for stage in (REPORT, TRANSFER):
        assert stage.models["trained_other"] == stage.models["trained"]
        assert list(stage.envs) == ["trained_other"]
        ours, other = stage.env.model_dump(), stage.envs["trained_other"].model_dump()
        assert ours.pop("tools") == [{"use": "search", "ranking": "bm25"}]
        assert other.pop("tools") == [{"use": "search", "ranking": "trigrams"}]
        assert ours == other
    _, kept = asked
    row = next(row for row in kept if about(row)["hops"] == 3)
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)
    script = walk(row)
    assert script == walk(row, REPORT.envs["trained_other"])
    (_, ours), (_, theirs) = (
        play(policy, TRAINED, row, [script], env) for env in (REPORT.env, REPORT.envs["trained_other"])
    )
    assert ours[0] == theirs[0]


def test_no_stage_has_seen_the_problems_and_graphs_of_the_reports():
    trained_on = {row["id"] for name in ("easy_questions", "hard_questions") for row in ask(name)}
    (report,), (transfer,) = REPORT.tasks, TRANSFER.tasks
    assert not trained_on & {row["id"] for row in bind(report)()}
    worlds = {use.options["of"]["world"] for use in STAGES["lessons"].problems}
    assert 0 not in worlds
    assert transfer.options["world"] not in worlds | {0}
    assert not set(about(bind(transfer)()[0])["documents"]) & set(about(bind(report)()[0])["documents"])

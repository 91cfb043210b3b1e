"""Fathom-DeepResearch: RAPO on outcomes, then a reward for what each call was worth, and a second model that reports.

Slots, environment and rewards are those of the recipe; completions are dictated. Not shown: calls to the live web, the
quality of reports.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.curation import row_scores
from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import Turn, hash_name
from learning.samples.sample import History, Sample
from learning.sampling.scoring import scores_of
from schemas.recipe.load import load_recipe
from tasks.context import Context
from tasks.curate import run
from tests.papers.dictated import play

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "fathom-deepresearch.yaml")
STAGES = LOADED.stages
OUTCOME, TRAINED, GRPO = (STAGES[name] for name in ("outcome", "trained", "grpo"))
RAPO = (OUTCOME, TRAINED)
ROWS = bind(STAGES["all_questions"].problems[0])()


@pytest.fixture
def policy(tiny_policy):
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def sample(reward, group=0, key="a", kinds=(), text="x", finish="stop", ok=True):
    turns = [Turn(1, 0, kind=hash_name(kind) if kind else 0, ok=ok) for kind in kinds]
    made = Sample(
        {"id": key, "answer": "right", "prompt": []},
        group,
        "policy",
        [5, 6],
        [7] * max(1, len(turns)),
        [-1.0] * max(1, len(turns)),
        finish,
        text,
        turns=turns,
    )
    made.versions, made.scores, made.reward = [0] * len(made.completion_ids), {"answers.exact": reward}, reward
    return made


@pytest.mark.parametrize("stage", RAPO)
def test_advantages_grow_with_the_groups_that_teach_nothing(stage):
    """Four groups, one of which has variance: its advantages are four times those of GRPO."""
    samples = [sample(float(g == 0 and k < 2), g, str(g)) for g in range(4) for k in range(4)]

    def advantages(of):
        batch = with_advantages(bind_algorithm(of, {}), forest(samples), 0, states={}, rows=[s.row for s in samples])
        return torch.stack([batch.sampled("advantage")[batch.path_T == path][0] for path in range(16)])

    scaled, plain = advantages(stage), advantages(GRPO)
    torch.testing.assert_close(scaled, 4 * plain)
    assert plain[:4].tolist() == pytest.approx([0.866, 0.866, -0.866, -0.866], abs=1e-3)
    assert scaled[4:].tolist() == [0.0] * 12


@pytest.mark.parametrize("stage", RAPO)
@pytest.mark.parametrize("seed", range(6))
def test_solved_problems_leave_after_the_epoch(stage, seed):
    rows, history, state = [{"id": name} for name in "abcdef"], History(), {}

    def draw(step, groups=3):
        supplies = {"rows": rows, "num_groups": groups, "n": 2, "seed": seed, "step": step, "state": state}
        made = bind(stage.prompt_sampler, "prompt_sampler").ask(step, supplies | {"history": history})
        return [request.row["id"] for request in made]

    first = draw(0)
    history.rates = {first[0]: [1.0], first[1]: [0.875], first[2]: [0.9]}
    # The epoch goes on with the others, though two of these are solved.
    second = draw(1)
    assert sorted(first + second) == list("abcdef")
    history.rates |= {second[0]: [1.0, 0.5], second[1]: [0.0]}
    state = json.loads(json.dumps(state))
    rest = draw(2, groups=4)
    assert sorted(rest) == sorted({*"abcdef"} - {first[0], first[2]})
    # They do not come back, and where all are solved all stay.
    history.rates = {name: [1.0] for name in "abcdef"}
    assert sorted(draw(3, groups=4)) == sorted(rest)
    assert stage.prompt_sampler.options["below"] == 0.9


@pytest.mark.parametrize("stage", RAPO)
def test_a_group_that_failed_gets_the_last_success_in_place_of_one_answer(stage):
    (use,) = stage.extra_samples
    bound, state = bind(use, "extra_samples.0"), {}

    def add(*samples):
        states = {"extra_samples.0": state}
        return bound.ask(0, {"samples": list(samples), "states": states, "rng": np.random.default_rng(0), "seed": 0})

    old, new = sample(1.0, text="old"), sample(1.0, text="new")
    assert len(add(old, sample(0.0))) == 2
    add(new, sample(0.0))
    made = add(*(sample(0.0, group=3) for _ in range(4)))
    assert len(made) == 4
    assert [one.text for one in made if one.reward == 1.0] == ["new"]
    assert [one.source for one in made].count("replay") == 1
    assert all(one.group == 3 for one in made)
    # Another problem has nothing stored.
    assert not [one for one in add(*(sample(0.0, group=4, key="b") for _ in range(4))) if one.reward]


def steer(*samples):
    (reward,) = (bind(use) for use in TRAINED.rewards)
    supplies = {"rows": [s.row for s in samples], "completions": [s.text for s in samples], "samples": list(samples)}
    return scores_of(reward, 0, supplies, {})


def calls(searches=0, queries=0, redundant=0, verifying=0):
    kinds = ["search new"] * searches + ["open new"] * (queries - verifying) + ["open verifying"] * verifying
    return [*kinds, *["search redundant"] * redundant, ""]


def test_a_right_answer_earns_less_for_redundant_calls_down_to_half():
    right = [sample(1.0, kinds=calls(searches=10 - r, redundant=r), text="right") for r in (0, 3, 5, 9, 10)]
    assert steer(*right) == pytest.approx([1.1, 0.8, 0.6, 0.6, 0.6])
    assert steer(sample(1.0, kinds=[""], text="right")) == pytest.approx([1.1])


def test_a_wrong_answer_earns_for_what_was_new_up_to_a_budget_and_never_more_than_a_right_one():
    wrong = sample(0.0, kinds=calls(searches=4, queries=16, verifying=7, redundant=2))
    assert steer(wrong) == pytest.approx([0.4])
    options = bind(TRAINED.rewards[0]).options
    limits = {name: options.get(name, default) for name, default in (("searches", 8), ("queries", 16), ("share", 0.2))}
    assert limits == {"searches": 8, "queries": 16, "share": 0.2}
    most, least = (
        sample(0.0, kinds=calls(searches=80, queries=160)),
        sample(1.0, kinds=calls(redundant=9), text="right"),
    )
    assert steer(most, least) == pytest.approx([0.5, 0.6])
    assert steer(sample(0.0, kinds=calls(redundant=9))) == pytest.approx([0.1])


def test_a_call_that_failed_or_an_episode_that_was_cut_has_not_the_form():
    assert steer(sample(1.0, kinds=calls(searches=2), text="right", ok=False)) == pytest.approx([1.0])
    assert steer(sample(0.0, kinds=calls(searches=8), finish="length")) == pytest.approx([0.2])


def test_calls_are_told_apart_by_what_they_show(policy):
    documents = ["bam river zed", "tok twin bam", "lum river zed", "fir trade gos"]
    row = ROWS[0] | {
        "answer": "zed",
        "metadata": json.dumps({"documents": documents, "titles": [text.rpartition(" ")[0] for text in documents]}),
    }
    turns = [
        "open: tok twin",
        "search: fir",
        "search: fir",
        "open: bam river",
        "open: lum river",
        "open:",
        "open: tok twin",
        "zed",
    ]
    env = TRAINED.env.model_copy(update={"max_turns": 9})
    (made,), _ = play(policy, TRAINED, row, [turns], env=env)
    expected = ["open new", "search new", "search redundant", "open verifying", "open verifying", "open redundant"]
    expected += ["open redundant"]
    assert [turn.kind for turn in made.turns] == [*map(hash_name, expected), 0]
    assert made.turns[5].ok is False
    # ρ = 3/7, and one call failed.
    assert made.reward == pytest.approx(1 - 3 / 7)


def test_a_question_stays_if_two_askers_agree_and_memory_does_not_do(tmp_path, monkeypatch):
    for name in ("in", "out", "checkpoints"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "in", "prompts", ROWS)

    def say(judge, questions, *, n, sampling, rng):
        known = {row["prompt"][-1]["content"]: row["answer"] for row in ROWS[:3]}
        return [[known.get(messages[-1]["content"], "no"), *["no"] * (n - 1)] for messages in questions]

    monkeypatch.setattr(row_scores, "guest", lambda model: None)
    monkeypatch.setattr(row_scores, "replies", say)
    stage = STAGES["questions"]
    assert [use.use for use in stage.filters] == ["solvable", "solvable"]
    rankings = [use.options["env"]["tools"][0]["ranking"] for use in stage.filters]
    assert rankings == ["bm25", "trigrams"]
    inputs = {port.path: tmp_path / "in" for port in LOADED.ports("questions") if port.path != "decontaminate"}
    run(stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0))
    kept = {row["id"] for row in read_rows(tmp_path / "out" / "outputs" / "data", "prompts")}
    documents = set(json.loads(ROWS[0]["metadata"])["documents"])
    for place, row in enumerate(ROWS):
        *chain, at = row["prompt"][0]["content"].removesuffix("?").split(" of ")
        found = True
        for relation in reversed(chain):
            facts = {tuple(text.split()[:2]): text.split()[2] for text in documents}
            found, at = found and (at, relation) in facts, facts.get((at, relation), "")
        assert (row["id"] in kept) == (found and place > 2)
    assert 0 < len(kept) < len(ROWS) - 3
    assert (OUTCOME.prompts, TRAINED.prompts, GRPO.prompts) == ("questions",) * 3


def test_the_second_stage_goes_on_from_the_first_and_the_comparator_has_as_many_iterations():
    assert (OUTCOME.model, TRAINED.model, GRPO.model) == ("start", "outcome", "start")
    assert [use.use for use in OUTCOME.rewards] == [use.use for use in GRPO.rewards] == ["answers.exact"]
    assert [use.use for use in TRAINED.rewards] == ["search_steps.steered"]
    assert GRPO.max_steps == OUTCOME.max_steps + TRAINED.max_steps
    first, second = (stage.model_dump(mode="json") for stage in RAPO)
    assert {key for key in first if first[key] != second[key]} == {"model", "rewards", "max_steps"}
    assert dict(STAGES["report"].models) == {
        "start": "start",
        "outcome": "outcome",
        "trained": "trained",
        "grpo": "grpo",
    }
    tasks = bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in tasks} & {row["id"] for row in ROWS}


def test_the_second_model_imitates_reports_with_a_plan_and_citations():
    lessons, write = bind(STAGES["reports"].problems[0])(), bind(STAGES["reports"].teacher)
    long = next(row for row in lessons if len(json.loads(row["metadata"])["read"]) == 2)
    read = json.loads(long["metadata"])["read"]
    report = write(long, None)
    plan = ", ".join(text.split()[1] for text in read)
    assert report == f"plan: {plan}. report: {read[0]} [1]; {read[1]} [2]. answer: {long['answer']}"
    (use,) = (bind(one) for one in STAGES["written"].rewards)
    texts = [report, f"answer: {long['answer']}", report.replace("[1]", ""), report[: report.rindex(":")] + ": no"]
    supplies = {"rows": [long] * 4, "completions": texts}
    assert scores_of(use, 0, supplies, {}) == [1.0, 0.0, 0.0, 0.0]
    assert (STAGES["synthesizer"].model, STAGES["synthesizer"].kind) == ("writer_base", "sft")
    assert dict(STAGES["written"].models) == {"base": "writer_base", "synthesizer": "synthesizer"}
    tasks = bind(STAGES["written"].tasks[0])()
    assert not {row["id"] for row in tasks} & {row["id"] for row in lessons}

"""Beyond Ten Turns: questions are made harder without changing their answer, and updates do not wait for the longest
episode.

One episode of 40 turns goes on among fifteen of 4: on the recipe's clock the asynchronous loop has made three updates
before it ends, the synchronous one none; every token knows its weights, and none is older than `max_staleness`. What
is said is dictated; the search, its answers, episodes, clock, drive and versions are the real ones. A question that a
model answers unseen is dropped, with the model of the recipe's stage replaced by a script.

Not shown: 150k tokens, a search in the web, throughput.
"""

import json
from pathlib import Path

import pytest

from learning.algorithm.composition import bind_algorithm
from learning.collection.rollouts.rollouts import synchronous
from learning.data.chat import decode, encode_completion, encode_prompt, encode_reply
from learning.environments.lookup_environment import build_environment
from learning.environments.making import wrap_in_environment
from learning.generation.services.local_rollouts import LocalRollouts
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.toy_tasks.atlas import count_hops, find_answers, find_needed_documents, list_texts, make_atlas
from schemas.recipe.load import load_recipe
from schemas.use import EngineUse
from tests.papers.decoupled_ratio import check_decoupled_ratio

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "asearcher.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
DOCUMENTS = make_atlas(15, 0)
WRITTEN = {(town, relation): statement for town, relation, statement in DOCUMENTS}
TOKENS = 4096
"""Of an episode: 40 turns have room."""


@pytest.fixture(scope="module")
def questions():
    return bind(STAGES["questions"].problems[0])()


def parsed(text):
    """A question as a query again."""
    text = text.removesuffix("?")
    if text.startswith("town with "):
        _, _, relation, word = text.split()
        return ("with", relation, word)
    relation, of, inner = text.partition(" of ")
    return (relation, parsed(inner)) if of else text


def test_every_round_keeps_the_answer(questions):
    kinds = {"seed": 0, "inject": 0, "fuzz": 0}
    for row in questions:
        steps = json.loads(row["metadata"])["steps"]
        assert row["prompt"][0]["content"] == f"{steps[-1][1]}?"
        for kind, text in steps:
            kinds[kind] += 1
            assert find_answers(parsed(text), DOCUMENTS) == {row["answer"]}
    assert min(kinds.values()) > 50


def test_every_injection_takes_one_document_more(questions):
    for row in questions:
        steps = json.loads(row["metadata"])["steps"]
        read = [len(find_needed_documents(parsed(text), DOCUMENTS)) for _, text in steps]
        for (kind, _), before, after in zip(steps[1:], read, read[1:], strict=False):
            # A twin may lead back to a town whose document is read anyway, and a fuzzed word to several at first.
            assert after == before + 1 if kind == "inject" and "with" not in steps[-1][1] else after >= before


def test_a_question_that_is_answered_without_a_search_is_dropped(answering, questions, monkeypatch):
    import learning.sampling.verdicts

    text = {row["id"]: row["prompt"][0]["content"] for row in questions}
    rows = [row for row in questions if sum(text[row["id"]] in other for other in text.values()) == 1][:40]
    known = {text[row["id"]]: row["answer"] for row in rows[:20]}
    guesser = answering(lambda prompt, number: next((a for q, a in known.items() if q in prompt and number == 1), "no"))
    monkeypatch.setattr(learning.sampling.verdicts, "guest", lambda folder: guesser)
    keep = bind(STAGES["unknown"].filters[0], "filters.0", {"filters.0.model": Path("guesser")})
    assert [keep(row) for row in rows] == [False] * 20 + [True] * 20
    assert not any(document in prompt for prompt in guesser.engine.prompts for document in list_texts(DOCUMENTS))


def test_every_search_of_a_script_is_answered_by_the_document_that_leads_on(questions):
    """By the recipe's environment, its search going through all 60 documents; a turn without a call is the answer."""
    env = build_environment(STAGES["trained"].env, {})
    for row in questions:
        *calls, answer = json.loads(row["metadata"])["script"]
        episode, query = env.begin(row, 0), parsed(row["prompt"][0]["content"])
        outcomes = [episode.step(call) for call in calls]
        assert {o.observation for o in outcomes} <= set(list_texts(find_needed_documents(query, DOCUMENTS)))
        assert [(o.ok, o.done, o.seconds) for o in outcomes] == [(True, False, 0.1)] * count_hops(query)
        assert episode.step(answer).done
        assert answer == row["answer"] in outcomes[-1].observation.split()


def walk(start, turns):
    """From a town to its twin and so on: the calls of an episode of so many turns, the answer, and all replies."""
    calls, replies, town = [], [], start
    for _ in range(turns - 1):
        calls.append(f"search: {town} twin")
        replies.append(f"{town} twin {WRITTEN[town, 'twin']}")
        town = WRITTEN[town, "twin"]
    return [*calls, town], replies


TOWNS = sorted({town for town, _, _ in DOCUMENTS})
ROWS = [
    {"id": f"{turns}.{town}", "prompt": [{"role": "user", "content": f"from {town} {turns}"}], "answer": "x"}
    | {"family": "f", "metadata": json.dumps({"documents": list_texts(DOCUMENTS)})}
    for turns, town in [(40, TOWNS[0]), *((4, town) for town in TOWNS)]
]


class Dictated:
    """An engine without a model. It says what a problem's walk says, a token a step, and notes the weights' version."""

    def __init__(self, policy):
        self.tokenizer, self.version, self.says = policy.tokenizer, 0, {}
        for row in ROWS:
            _, town, turns = row["prompt"][0]["content"].split()
            turn_texts, replies = walk(town, int(turns))
            ids = []
            for turn, reply in zip(turn_texts, [*replies, None], strict=True):
                ids += encode_completion(self.tokenizer, [{"role": "assistant", "content": turn}])
                ids += [] if reply is None else encode_reply(self.tokenizer, reply)
            self.says[tuple(encode_prompt(self.tokenizer, row["prompt"]))] = ids

    def sync(self, version):
        self.version = version

    def generate(self, requests, sampling):
        raise AssertionError("it is asked step by step")

    def flight(self, sampling):
        return Dictation(self)


class Dictation:
    """Its completions, step by step."""

    def __init__(self, engine):
        self.engine, self.under_way = engine, []

    @property
    def running(self):
        return len(self.under_way)

    def add(self, ticket, request):
        assert request.n == 1
        self.under_way.append((ticket, request, []))

    def step(self):
        over = []
        for one in self.under_way:
            _, request, made = one
            token = self.engine.says[tuple(request.prompt_ids)][len(request.begun) + len(made)]
            made.append((token, self.engine.version))
            if token == self.engine.tokenizer.eos_token_id:
                over.append(one)
        self.under_way = [one for one in self.under_way if one not in over]
        return [self.told(*one, "stop") for one in over]

    def suspend(self, tickets=None):
        taken, self.under_way = self.under_way, []
        return [self.told(*one, "suspended") for one in taken]

    def told(self, ticket, request, made, finish):
        spans = [(version, 1) for _, version in made]
        return ticket, Generation([i for i, _ in made], [-0.1] * len(made), finish, [], spans, sample=request.first)


def episodes_of(engine, policy):
    return wrap_in_environment(engine, STAGES["trained"].env, policy.tokenizer, {})


def alone(policy, rows):
    """What a synchronous drive makes of problems in the recipe's environment, and when on its clock."""
    episodes = episodes_of(Dictated(policy), policy)
    sampler = Sampler(episodes, policy, Sampling(1.0, TOKENS), 0, 0)
    return synchronous([SampleRequest(row) for row in rows], sampler), episodes.clock.now


def streamed(policy, loop, **how):
    """The recipe's stage with its rollout function, environment and clock."""
    source = LocalRollouts(EngineUse(use=f"{__name__}:Dictated"), policy, lambda engine: episodes_of(engine, policy))
    return loop(STAGES["trained"], policy, ROWS, num_groups=16, tokens=TOKENS, source=source, **how)


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer speaks; prompts of any length are taken."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 2 * TOKENS)


def test_updates_go_on_while_the_long_trajectory_does(policy, loop):
    """One of 40 turns among fifteen of 4; the recipe's own steps pass in an update."""
    _, end = alone(policy, ROWS[:1])
    _, short = alone(policy, ROWS[1:])
    assert end > 9 * short
    run = streamed(policy, loop, max_steps=8)
    clock, long, updates, ages = run.source.engine.clock, None, [], []
    for step in range(5):
        samples = run.iterate(lambda samples: updates.append(clock.now))
        ages += [step - version for t in samples for version in t.versions]
        long = long or next((t for t in samples if t.row is ROWS[0]), None)
    assert sum(now < end for now in updates) >= 3
    assert max(ages) <= STAGES["trained"].rollout.options["max_staleness"] == 4
    assert min(ages) == 0
    # A version for each of its tokens, of several updates; what a search said has that of the call.
    assert [turn.ok for turn in long.turns] == [True] * 40
    assert len(long.versions) == len(long.completion_ids) > 1000
    assert long.versions == sorted(long.versions)
    assert len(set(long.versions)) >= 3
    turn_texts, at = walk(TOWNS[0], 40), 0
    for turn, text in zip(long.turns, turn_texts[0], strict=True):
        ids = long.completion_ids[at : at + turn.sampled]
        assert decode(policy.tokenizer, ids) == text
        observed = range(at + turn.sampled, at + turn.sampled + turn.observed)
        assert {long.versions[k] for k in observed} <= {long.versions[at + turn.sampled - 1]}
        assert not any(long.own[k] for k in observed)
        at += turn.sampled + turn.observed
    assert (at, long.text, long.finish) == (len(long.completion_ids), turn_texts[0][-1], "stop")


def test_the_synchronous_baseline_makes_none(policy):
    """The batch is there, and the first update may begin, when the longest has ended."""
    samples, now = alone(policy, ROWS)
    _, end = alone(policy, ROWS[:1])
    assert now == end > 10
    assert sorted(len(t.turns) for t in samples) == [4] * 15 + [40]
    assert {version for t in samples for version in t.versions} == {0}


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_no_sample_is_admitted_that_could_become_too_old(policy, loop, bound):
    run = streamed(policy, loop, max_steps=6, max_staleness=bound, ahead=None)
    ages = [step - version for step in range(6) for t in run.iterate() for version in t.versions]
    assert (min(ages), max(ages)) == (0, bound)


def test_a_stale_token_is_weighted_by_the_ratio_of_the_proximal_policy_to_the_one_that_sampled_it():
    inputs = {port.path: Path("p") for port in load_recipe(RECIPE, profile="tiny").ports("trained")}
    check_decoupled_ratio(bind_algorithm(STAGES["trained"], inputs))


@pytest.mark.parametrize("profile", ["tiny", "full"])
def test_the_synchronous_baseline_differs_in_when_it_updates_and_in_nothing_else(profile):
    recipe = load_recipe(RECIPE, profile=profile)
    trained, waits = (recipe.stages[name].model_dump(exclude={"rollout"}) for name in ("trained", "synchronous"))
    assert trained == waits
    assert recipe.stages["synchronous"].rollout.use == "synchronous"
    report = {port.path: port.steps for port in recipe.ports("report")}
    assert [report[f"models.{name}"] for name in ("synchronous", "trained")] == [("synchronous",), ("trained",)]


def test_both_are_trained_on_questions_that_the_filter_kept():
    recipe = load_recipe(RECIPE, profile="tiny")
    for name in ("trained", "synchronous"):
        read = {port.path: port.steps for port in recipe.ports(name)}
        assert read["prompts"] == ("unknown",)
    assert {port.path: port.steps for port in recipe.ports("unknown")}["data"] == ("questions",)
    assert [use.use for use in recipe.stages["unknown"].filters] == ["unanswered"]

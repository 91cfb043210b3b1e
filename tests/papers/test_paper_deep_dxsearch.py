"""Deep-DxSearch: rewards for form, evidence, structure and diagnosis, each a term of its own over one corpus.

Turns are dictated; corpus, tools, checklists and rewards are those of the recipe. Not shown: that an agent diagnoses
better for it.
"""

import json
from pathlib import Path

import pytest

from learning.batch.batch_layout import forest
from learning.data.chat import decode
from learning.environments.lookup_environment import build_environment
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.scoring import scores_of
from learning.toy_tasks.patients import make_diseases, write_corpus
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, Dictated

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "deep-dxsearch.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, OUTCOME, REPORT = STAGES["trained"], STAGES["outcome"], STAGES["report"]
WEIGHTS = {"form": 0.1, "retrieval": 0.3, "structure": 0.2, "diagnosis": 1.0}
CASE, OTHER = "case dola: ache rash itch chill", "case kemi: cough faint tic burn"
CARD = "card dola: ache rash itch chill cough"


def make_question(records=(CASE, OTHER), cards=(CARD,)):
    about = {"records": list(records), "cards": list(cards)}
    about["evidence"] = [
        {"item": "a record", "evidence": ["case dola:"], "focus": "answer"},
        {"item": "the card", "evidence": ["card dola:"], "focus": "answer"},
    ]
    about["structure"] = [
        {"item": "matches", "evidence": ["match: ache rash"]},
        {"item": "looks up", "evidence": ["lookup:"]},
        {"item": "reasons", "evidence": ["reason: dola"]},
    ]
    prompt = [{"role": "user", "content": "ache rash?"}]
    return {"id": "q", "prompt": prompt, "answer": "dola", "family": "f", "metadata": json.dumps(about)}


QUESTION = make_question()
SOUND = ["match: ache rash", "lookup: dola", "reason: dola fits", "diagnose: dola"]


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 8 * TOKENS)


def score(policy, turns, row=QUESTION, stage=TRAINED):
    """The reward of an episode, and the sample."""
    episodes = wrap_in_environment(Dictated(policy.tokenizer, [turns]), stage.env, policy.tokenizer, {}, 8 * TOKENS)
    samples = Sampler(episodes, policy, Sampling(1.0, 2 * TOKENS), 0, 0).sample([SampleRequest(row, 1)])
    supplies = {"rows": [row], "completions": [samples[0].text], "samples": samples}
    total = 0.0
    for use in stage.rewards:
        (value,) = scores_of(bind(use), 0, supplies, {})
        total += use.weight * value
    return total, samples[0]


def load_with(**weights):
    changes = [f"vars.weights.{name}={value}" for name, value in weights.items()]
    return load_recipe(RECIPE, overrides=changes).stages["trained"]


def test_a_sound_diagnosis_earns_all_terms(policy):
    assert score(policy, SOUND)[0] == pytest.approx(sum(WEIGHTS.values()))
    assert score(policy, ["diagnose: kemi"])[0] == pytest.approx(WEIGHTS["form"])


def test_the_record_of_the_disease_raises_retrieval_alone_even_with_a_wrong_diagnosis(policy):
    turns = [*SOUND[:3], "diagnose: kemi"]
    found, _ = score(policy, turns)
    without, _ = score(policy, turns, make_question(records=["case kemi: ache rash", OTHER]))
    assert found - without == pytest.approx(WEIGHTS["retrieval"] / 2)
    assert found == pytest.approx(sum(WEIGHTS.values()) - WEIGHTS["diagnosis"])


def test_a_right_diagnosis_without_evidence_scores_below_one_with_it(policy):
    guessed, _ = score(policy, ["diagnose: dola"])
    half, _ = score(policy, ["match: ache rash", "diagnose: dola"])
    assert guessed == pytest.approx(WEIGHTS["form"] + WEIGHTS["diagnosis"])
    assert half == pytest.approx(guessed + WEIGHTS["retrieval"] / 2 + WEIGHTS["structure"] / 3)
    assert guessed < half < score(policy, SOUND)[0]


@pytest.mark.parametrize(
    ("turns", "terms"),
    [
        (SOUND, {"form": 1, "retrieval": 1, "structure": 1, "diagnosis": 1}),
        ([*SOUND[:2], "diagnose: kemi"], {"form": 1, "retrieval": 1, "structure": 2 / 3, "diagnosis": 0}),
        (["match: zzz", *SOUND[1:]], {"form": 0, "retrieval": 0.5, "structure": 2 / 3, "diagnosis": 1}),
        (["reason: dola", "dola"], {"form": 1, "retrieval": 0, "structure": 1 / 3, "diagnosis": 0}),
    ],
)
def test_a_weight_of_zero_removes_exactly_its_term(policy, turns, terms):
    total, _ = score(policy, turns)
    assert total == pytest.approx(sum(WEIGHTS[name] * value for name, value in terms.items()))
    for name, value in terms.items():
        without, _ = score(policy, turns, stage=load_with(**{name: 0}))
        assert total - without == pytest.approx(WEIGHTS[name] * value)


def test_without_records_nothing_matches(policy):
    """The corpus without records, and the environments of the report in which a tool has nothing to search."""
    bare, _ = score(policy, SOUND, make_question(records=[]))
    assert bare == pytest.approx(WEIGHTS["diagnosis"] + WEIGHTS["retrieval"] / 2 + WEIGHTS["structure"] * 2 / 3)
    shown = {}
    for name, env in {"all": REPORT.env, **REPORT.envs}.items():
        episode = build_environment(env, {}).begin(QUESTION, 0)
        shown[name] = [episode.step(turn).observation for turn in SOUND[:3]]
    nothing = "error: there are no documents to search"
    assert shown == {
        "all": [CASE, CARD, "noted"],
        "without_records": [nothing, CARD, "noted"],
        "without_cards": [CASE, nothing, "noted"],
    }
    assert {REPORT.models[name] for name in ("trained", *REPORT.envs)} == {"trained"}


def test_what_tools_say_is_not_trained(policy):
    _, sample = score(policy, SOUND)
    batch = forest([sample])
    own = decode(policy.tokenizer, [t for t, o in zip(sample.completion_ids, sample.own, strict=True) if o])
    assert len(batch.path_T) == sum(sample.own) < len(sample.completion_ids)
    assert "case dola" not in own
    assert own.count("dola") == 3


def test_the_corpus_decides_every_question_and_scripts_earn_everything(policy):
    diseases, (records, cards) = make_diseases(0), write_corpus(0)
    assert (len(diseases), len(records), len(cards)) == (30, 90, 30)
    rows = bind(STAGES["questions"].problems[0])()
    for row in rows[::30]:
        asked = set(row["prompt"][0]["content"].removesuffix("?").split())
        assert [name for name, symptoms in diseases.items() if asked <= set(symptoms)] == [row["answer"]]
        script = json.loads(row["metadata"])["script"]
        assert score(policy, script, row)[0] >= sum(WEIGHTS.values()) - WEIGHTS["retrieval"] / 2 - 1e-9
    symptoms = [
        {frozenset(row["prompt"][0]["content"].removesuffix("?").split()) for row in bind(use)()}
        for use in (STAGES["questions"].problems[0], REPORT.tasks[0])
    ]
    assert not symptoms[0] & symptoms[1]


def test_the_other_arm_is_rewarded_for_form_and_diagnosis(policy):
    trained, outcome = TRAINED.model_dump(), OUTCOME.model_dump()
    assert {key for key in trained if trained[key] != outcome[key]} == {"env", "rewards"}
    assert score(policy, SOUND, stage=OUTCOME)[0] == pytest.approx(WEIGHTS["form"] + WEIGHTS["diagnosis"])
    assert score(policy, ["diagnose: dola"], stage=OUTCOME)[0] == pytest.approx(1.1)
    assert OUTCOME.env == REPORT.env
    assert 0 not in {use.options["of"]["world"] for use in STAGES["lessons"].problems}

"""Interviews with a partner who knows facts: what is told, what it earns, profiles, saved states, and the teacher."""

import json

import numpy as np
import pytest

from learning.data.profiles import compute_profile_f1, split_profile, write_profile
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Savable
from learning.teachers.interviews import interviewer
from learning.toy_tasks.acquaintances import SLOTS, acquaintances
from learning.toy_tasks.clinic import SIGNS, SYMPTOMS, WARDS, consultations, list_illnesses, patients
from schemas.errors import StepError
from schemas.use import EnvUse

FACTS = {"fever": "yes", "cough": "no", "rash": "yes"}


def make_row(**metadata):
    return {
        "id": "r",
        "prompt": [{"role": "user", "content": "fever yes"}],
        "answer": "Flu A",
        "metadata": json.dumps({"facts": FACTS, "shown": ["fever"], **metadata}),
    }


def begin(row=None, **options):
    use = EnvUse.model_validate({"use": "interview", **options})
    return build_environment(use, {}).begin(make_row() if row is None else row, 0)


def test_what_is_asked_for_is_told_and_paid_once():
    episode = begin(make_row(worth={"cough": 0.3, "rash": 0.7}), gain=2.0, cost=0.1)
    told = [episode.step(text) for text in ("do you cough? or rash?", "cough", "fever?", "how are you?", " ")]
    assert [one.observation for one in told] == ["cough: no", "cough: no", "fever: yes", "?", "?"]
    assert [one.reward for one in told] == pytest.approx([0.5, -0.1, -0.1, -0.1, -0.1])
    assert [one.ok for one in told] == [True] * 4 + [False]
    assert {one.kind for one in told} == {"question"}
    both = begin(gain=1.0, per_turn=2, reply="{fact} {value}")
    asked = both.step("rash, cough and fever?")
    assert (asked.observation, asked.reward) == ("rash yes, cough no", 1.0)


@pytest.mark.parametrize(("said", "reward"), [("answer: flu  a", 1.0), ("answer: flu", 0.0), (" answer:", 0.0)])
def test_a_conclusion_ends_the_episode(said, reward):
    outcome = begin().step(said)
    assert (outcome.done, outcome.reward, outcome.kind) == (True, reward, "conclusion")


def test_without_a_final_word_an_episode_lasts_its_rounds():
    episode = begin(final=None, rounds=3)
    assert [episode.step("answer: flu a").done for _ in range(3)] == [False, False, True]
    with pytest.raises(StepError, match="nothing ends an episode"):
        begin(final=None)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"facts": {}}, "need `facts`"),
        ({"shown": ["x"]}, "`x` is not one"),
        ({"facts": {"two words": "a"}}, "one word"),
    ],
)
def test_rows_without_usable_facts_are_refused(metadata, text):
    with pytest.raises(StepError, match=text):
        begin(make_row(**({"shown": []} | metadata)))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_saved_state_is_continued(wrapped):
    plain = {"use": "interview", "gain": 1.0}
    options = {"use": "profiled", "of": plain} if wrapped else plain
    turn = "<profile>cough=no</profile>" if wrapped else ""
    first, second = begin(**options), begin(**options)
    assert isinstance(first, Savable)
    first.step(f"{turn}cough?")
    second.restore(json.loads(json.dumps(first.save())))
    assert [one.step(f"{turn}cough?").reward for one in (first, second)] == [float(wrapped) * 2 / 4 + 0.0] * 2
    assert first.save() == second.save() == {"known": ["fever", "cough"], "turns": 2}


def test_states_have_the_known_facts_in_any_order():
    first, second = begin(), begin()
    for one, order in ((first, ("cough", "rash")), (second, ("rash", "cough"))):
        assert isinstance(one, HasStateName)
        for fact in order:
            one.step(fact)
    assert first.state_name == second.state_name == "cough fever rash"


def test_profiles_are_read_and_compared():
    assert split_profile("<p>pet=cat, city = new york ,x,pet=dog</p> hi", "p") == (
        {"pet": "dog", "city": "new york"},
        "hi",
    )
    assert split_profile("<p></p>hi", "p") == ({}, "hi")
    assert split_profile("<p>pet=cat hi", "p") == (None, "<p>pet=cat hi")
    profile = {"pet": "cat", "city": "rome"}
    assert split_profile(write_profile(profile, "p") + "hi", "p") == (profile, "hi")
    true = {"pet": "cat", "city": "rome", "job": "chef"}
    assert compute_profile_f1({"pet": "cat", "city": "oslo"}, true) == pytest.approx(0.4)
    assert compute_profile_f1({}, true) == compute_profile_f1({"x": "cat"}, true) == 0
    assert compute_profile_f1(true, true) == 1


def judge_length(rows, completions):
    """Score 0.25 per stated fact, for replies."""
    return [
        0.25 * len(json.loads(row["metadata"])["facts"]) if text else None
        for row, text in zip(rows, completions, strict=True)
    ]


def test_a_turn_earns_for_its_profile_its_reply_and_what_the_inner_environment_pays():
    options = {"use": "profiled", "of": {"use": "interview", "gain": 1.0}, "weight": 2.0}
    episode = begin(**options, response=f"{__name__}:judge_length", response_weight=2.0)
    outcome = episode.step("<profile>fever=yes,cough=yes</profile>rash?")
    assert (outcome.observation, outcome.kind) == ("rash: yes", "question")
    assert outcome.reward == pytest.approx(0.5 + 2 * (2 * 1 / 5) + 2 * 0.5)
    silent = episode.step("<profile>fever=yes</profile>")
    assert silent.reward == pytest.approx(2 * (2 * 1 / 4))
    bare = episode.step("rash?")
    assert (bare.ok, bare.reward, bare.observation) == (False, 0.0, "begin with <profile>slot=value</profile>")


def speak(row, **options):
    return interviewer(row, np.random.default_rng(0), **options)


def test_the_teacher_asks_for_what_is_hidden_and_concludes():
    row = make_row(worth={"cough": 0.3, "rash": 0.7})
    assert speak(row, order="worth") == "rash?"
    after = row | {
        "prompt": [*row["prompt"], {"role": "assistant", "content": "rash?"}, {"role": "user", "content": "rash: yes"}]
    }
    assert speak(after, order="worth") == "cough?"
    assert speak(after, order="worth", questions=1) == "answer: Flu A"
    assert speak(after, questions=1, conclusion="= {facts}") == "= fever rash"
    assert speak(after, order="worth", tag="p", conclusion=None) == "<p>fever=yes, rash=yes</p>cough?"
    assert speak(after, repeats=1.0) in ("fever?", "rash?")
    shown = after | {"metadata": json.dumps({"facts": {"rash": "a", "cough": "b"}})}
    assert speak(shown, tag="p", slips=1.0, conclusion=None) == "<p>rash=b</p>cough?"
    with pytest.raises(StepError, match="no `facts`"):
        speak(row | {"metadata": "{}"})


def test_patients_and_consultations_and_acquaintances():
    illnesses = list_illnesses()
    assert len(set(illnesses.values())) == len(illnesses) == 20
    for row in patients(split="train", size=40):
        metadata = json.loads(row["metadata"])
        own = {symptom for symptom in SYMPTOMS if metadata["facts"][symptom] == "yes"}
        assert own == set(illnesses[row["answer"]])
        assert row["prompt"][0]["content"].split()[1:] == metadata["shown"]
        assert [entry["weight"] for entry in metadata["rubric"]] == [5, 2, 2, -4, -4]
        assert not {entry["evidence"][0] for entry in metadata["rubric"][1:3]} & {*metadata["shown"]}
    answers = {}
    for row in consultations(split="train", size=150):
        metadata, ward = json.loads(row["metadata"]), row["prompt"][0]["content"].split()[1]
        deciding = tuple(metadata["facts"][SIGNS[place]] for place in WARDS[ward])
        assert answers.setdefault(deciding, row["answer"]) == row["answer"]
        assert sum(metadata["worth"].values()) == pytest.approx(1)
        useless = next(sign for place, sign in enumerate(SIGNS) if place not in WARDS[ward])
        if useless in metadata["worth"]:
            assert metadata["worth"][useless] == min(metadata["worth"].values()) < 0.5
    assert len(set(answers.values())) == 4
    people = acquaintances(split="test", size=20)
    assert not {row["id"] for row in people} & {row["id"] for row in acquaintances(split="train", size=200)}
    assert all(value in SLOTS[slot] for row in people for slot, value in json.loads(row["metadata"])["facts"].items())

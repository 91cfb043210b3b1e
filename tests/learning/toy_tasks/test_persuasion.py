"""Persuasion: what moves a partner, a persuader who never changes, and a controller who has seen the end."""

import numpy as np
import pytest

from learning.toy_tasks.environments.persuasion import Environment, Talk
from learning.toy_tasks.persuasion import APPEALS, ASK, BEG, BYE, hindsight_controller, persuasions, poor_persuader
from schemas.errors import StepError

FACT, STORY = APPEALS["facts"][0], APPEALS["story"][0]


def play(kind, *turns):
    talk = Environment().begin({"id": "r", "answer": kind}, 0)
    outcomes = [talk.step(turn) for turn in turns]
    return [one.observation for one in outcomes], [one.reward for one in outcomes], outcomes[-1].done


def test_a_partner_gives_after_an_appeal_of_its_kind():
    assert play("facts", FACT, STORY, ASK, BYE) == (["go on", "tales bore me", "yes i give", ""], [0, 0, 0, 1], True)
    assert play("story", FACT, BEG, ASK, BYE) == (["numbers bore me", "hm", "no", ""], [0, 0, 0, 0], True)
    assert play("story", ASK, f" {STORY}  ", "what", BYE) == (["no", "go on", "hm", ""], [0, 0, 0, 0], True)


def test_a_saved_talk_continues():
    talk, other = Talk("facts"), Talk("facts")
    talk.step(FACT)
    other.restore(talk.save())
    assert [other.step(turn).reward for turn in (BEG, ASK, BYE)] == [0, 0, 1]
    with pytest.raises(StepError, match="its answer is not one of facts, story"):
        Environment().begin({"id": "r", "answer": "x"}, 0)


def test_the_poor_persuader_never_tries_the_other_kind():
    row, rng = persuasions(split="train", size=1)[0], np.random.default_rng(0)
    said = set()
    for _ in range(40):
        prompt = [
            *row["prompt"],
            {"role": "assistant", "content": FACT},
            {"role": "user", "content": "numbers bore me"},
        ]
        said.add(poor_persuader(row | {"prompt": prompt}, rng, begs=0.5))
    assert said == {*APPEALS["facts"], BEG}


@pytest.mark.parametrize(
    ("answers", "turn", "kind"),
    [(("numbers bore me", "hm"), 2, "story"), (("go on", "tales bore me"), 3, "facts"), (("go on", "hm"), None, None)],
)
def test_the_controller_names_the_turn_after_the_one_that_bored(answers, turn, kind):
    talk = f"partner: hi\nagent 1: a\npartner: {answers[0]}\nagent 2: b\npartner: {answers[1]}\nagent 3: c\npartner: no"
    row = {"id": "r", "prompt": [{"role": "user", "content": f"{talk}\nagent 4: bye\nwhich turn ?"}]}
    text = hindsight_controller(row, np.random.default_rng(0))
    number, _, said = text.partition(": ")
    assert (number, said in APPEALS.get(kind, ())) == ((str(turn), True) if turn else ("none", False))


def test_a_problem_without_a_dialogue_is_refused():
    with pytest.raises(StepError, match="row r shows no turn"):
        hindsight_controller({"id": "r", "prompt": [{"role": "user", "content": "hi"}]}, np.random.default_rng(0))


def test_partners_of_the_splits_differ():
    train, test = ({row["id"] for row in persuasions(split=split, size=48)} for split in ("train", "test"))
    assert len(train) == len(test) == 48
    assert not train & test

"""Turns whose teacher has seen all of them, with the prompts that a context policy makes."""

import pytest

from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import ProblemsUse

TURNS = {
    "use": "turns",
    "of": {"use": "text_games", "size": 4, "split": "train", "turns": [3], "rooms": 3, "items": 2, "crafts": False},
    "by": {"use": "text_game_expert"},
    "env": {"use": "text_game", "max_turns": 6},
    "answers": "turn",
}


def make(context, of=TURNS):
    return bind(ProblemsUse.model_validate({"use": "seen_contexts", "of": of, "context": context}))()


def test_prompts_are_those_of_the_policy_and_answers_stay():
    whole = bind(ProblemsUse.model_validate(TURNS))()
    shown = make({"use": "state", "text": "{question}|{observation}"})
    assert len(shown) == len(whole) == 12
    for before, after in zip(whole, shown, strict=True):
        assert {key for key in before if before[key] != after[key]} <= {"prompt"}
        number = int(before["id"].rpartition(".")[2])
        assert len(before["prompt"]) == 1 + 2 * number
        if number == 0:
            assert after["prompt"] == before["prompt"]
            continue
        first, last = before["prompt"][0]["content"], before["prompt"][-1]["content"]
        assert after["prompt"] == [{"role": "user", "content": f"{first}|{last}"}]
    kept = make({"use": "window", "keep": 1})
    assert [len(row["prompt"]) for row in kept] == [1, 3, 3] * 4


@pytest.mark.parametrize(
    ("context", "of", "message"),
    [
        ({"use": "summary", "budget": 9}, TURNS, "counts tokens"),
        ({"use": "memory"}, TURNS, "writes memories"),
        ({"use": "window"}, TURNS["of"], "is not one of `turns`"),
    ],
)
def test_what_cannot_be_shown_is_refused(context, of, message):
    with pytest.raises(StepError, match=message):
        make(context, of)

"""Checklists: which turns earn items, once each, with evidence, in any environment."""

import json

import pytest

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Outcome
from learning.problems.text_games import text_games
from schemas.errors import StepError
from schemas.use import EnvUse

LIST = [
    {"item": "greets", "evidence": ["hello", "Good Day"]},
    {"item": "asks for the date", "evidence": ["when"], "weight": 3},
]


class Environment:
    """Answer `ok` for five turns; `bad` is refused."""

    def begin(self, row: Row, seed: int) -> "Talk":
        """Return a talk."""
        return Talk()


class Talk:
    """The number of turns."""

    def __init__(self) -> None:
        self.turns = 0

    def step(self, action: str) -> Outcome:
        """Count a turn."""
        self.turns += 1
        return Outcome("ok", done=self.turns == 5, reward=0.25, seconds=2.0, ok="bad" not in action)

    def save(self) -> Row:
        """Return the number."""
        return {"turns": self.turns}

    def restore(self, saved: Row) -> None:
        """Go back."""
        self.turns = saved["turns"]


class Silent:
    """Answer nothing."""

    def begin(self, row: Row, seed: int) -> "Silent":
        """Return itself."""
        return self

    def step(self, action: str) -> Outcome:
        """End the episode."""
        return Outcome(done=True)


def prefers(rows, completions, *, word: str = "please"):
    """Score turns that are polite and asked about the item `asks for the date`."""
    return [
        float(word in text) if row["prompt"][0]["content"].startswith("asks") else None
        for row, text in zip(rows, completions, strict=True)
    ]


def begin(items=LIST, of=f"{__name__}:Environment", **options):
    use = EnvUse.model_validate({"use": "checklist", "of": of, **options})
    row = {"id": "r", "prompt": [], "answer": "5", "metadata": json.dumps({"checklist": items})}
    return build_environment(use, {}).begin(row, 0)


def test_an_item_is_paid_once_with_its_share_of_the_weight():
    episode = begin(weight=2.0)
    said = ["HELLO bad", "so", "well, good day", "hello, when?", "when?"]
    outcomes = [episode.step(text) for text in said]
    assert [o.reward for o in outcomes] == pytest.approx([0.25, 0.25, 0.25 + 0.5, 0.25 + 1.5, 0.25])
    assert outcomes[-1] == Outcome("ok", done=True, reward=0.25, seconds=2.0)
    assert outcomes[0].ok is False


def test_an_item_can_be_about_the_answer_of_the_environment():
    """`ok` is what `Talk` answers; the turn itself does not count, and neither does an answer to a refused turn."""
    items = [{"item": "it works", "evidence": ["OK"], "focus": "answer"}, {"item": "greets", "evidence": ["hello"]}]
    assert [begin(items).step(text).reward for text in ("ok bad", "so", "hello")] == pytest.approx([0.25, 0.75, 1.25])
    silent = begin(items, of=f"{__name__}:Silent")
    assert silent.step("ok").reward == 0.0
    judged = begin([{"item": "asks", "focus": "answer"}], judge={"use": f"{__name__}:prefers", "word": "ok"})
    assert judged.step("no").reward == pytest.approx(1.25)
    assert begin([{"item": "asks", "focus": "answer"}], of=f"{__name__}:Silent", judge=f"{__name__}:prefers").step(
        "please"
    ) == Outcome(done=True)


def test_the_list_can_have_another_name():
    use = EnvUse.model_validate({"use": "checklist", "of": f"{__name__}:Environment", "field": "items"})
    row = {"id": "r", "prompt": [], "answer": "5", "metadata": json.dumps({"items": LIST})}
    assert build_environment(use, {}).begin(row, 0).step("hello").reward == pytest.approx(0.5)
    with pytest.raises(StepError, match="its metadata needs a `items`"):
        build_environment(use, {}).begin(row | {"metadata": "{}"}, 0)


def test_one_turn_may_meet_several_items():
    assert begin().step("hello, when?").reward == pytest.approx(1.25)


def test_a_judge_decides_in_addition_to_the_evidence():
    episode = begin(judge={"use": f"{__name__}:prefers"})
    outcomes = [episode.step(text) for text in ("hello", "please", "when", "when, please")]
    assert [o.reward for o in outcomes] == pytest.approx([0.25, 0.25, 0.25, 1.0])  # `greets` has no score


def test_an_item_without_evidence_needs_a_judge():
    alone = [{"item": "asks nicely", "evidence": []}]
    assert begin(alone, judge={"use": f"{__name__}:prefers", "word": "x"}).step("x").reward == pytest.approx(1.25)
    with pytest.raises(StepError, match="may be empty with a `judge`"):
        begin(alone)


def test_episodes_go_on_from_what_they_saved():
    episode = begin()
    episode.step("hello")
    saved = json.loads(json.dumps(episode.save()))
    other = begin()
    other.restore(saved)
    assert [other.step(text) for text in ("hello", "when")] == [episode.step(text) for text in ("hello", "when")]
    assert other.open == []


def test_names_of_states_pass_through():
    (game,) = text_games(size=1, split="train", turns=[2])
    game["metadata"] = json.dumps(json.loads(game["metadata"]) | {"checklist": LIST})
    use = EnvUse.model_validate({"use": "checklist", "of": "text_game"})
    episode = build_environment(use, {}).begin(game, 0)
    assert isinstance(episode, HasStateName)
    assert episode.state_name == episode.episode.state_name
    assert not isinstance(begin(), HasStateName)


@pytest.mark.parametrize(
    "items",
    [
        None,
        [],
        "greets",
        [1],
        [{"item": 3, "evidence": ["a"]}],
        [{"item": "a", "evidence": "b"}],
        [{"item": "a", "evidence": [""]}],
        [{"item": "a", "evidence": ["b"], "weight": 0}],
        [{"item": "a", "evidence": ["b"], "weight": float("inf")}],
    ],
)
def test_rows_without_a_usable_list_are_refused(items):
    with pytest.raises(StepError, match="env checklist: row r"):
        begin(items)

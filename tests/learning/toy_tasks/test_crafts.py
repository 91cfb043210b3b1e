"""Crafts: what actions do, shortest ways, an expert that errs, verdicts, saved states, refused rows."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Savable
from learning.lookup import bind
from learning.toy_tasks.crafts import act, crafter, list_actions, make_craft_row, plan, show_bag
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse

RECIPES = {"boat": ["plank", "rope"], "plank": ["log"], "bell": ["plank"]}
ROW = make_craft_row(RECIPES, "boat", "craft2")


def begin(row=ROW, **options):
    return build_environment(EnvUse.model_validate({"use": "craft", **options}), {}).begin(row, 0)


def draw(use="crafts", **options):
    return bind(ProblemsUse.model_validate({"use": use, "size": 60, "split": "train", **options}))()


def test_the_answers_to_every_action():
    assert ROW["prompt"][0]["content"] == "make: boat\nboat: plank rope\nplank: log\nbell: plank\nhave: nothing"
    episode = begin(penalty=0.1)
    turns = ["craft plank", "get log", "get plank", "wait, what", "craft plank", "get rope", "get rope", "craft boat"]
    outcomes = [episode.step(turn) for turn in turns]
    assert [one.observation for one in outcomes] == [
        *("?\nhave: nothing", "have: log", "?\nhave: log", "ok", "have: plank"),
        *("have: plank rope", "have: plank rope rope", ""),
    ]
    assert [one.reward for one in outcomes] == [-0.1, 0, -0.1, 0, 0, 0, 0, 1]
    assert [one.ok for one in outcomes] == [False, True, False, True, True, True, True, True]
    assert [one.done for one in outcomes] == [False] * 7 + [True]


def test_a_way_uses_what_the_bag_holds():
    assert plan(RECIPES, (), "boat") == ["get log", "craft plank", "get rope", "craft boat"]
    assert plan(RECIPES, (("plank", 1),), "boat") == ["get rope", "craft boat"]
    assert plan(RECIPES, (("boat", 1),), "boat") == []
    twice = {"door": ["rod", "rod"], "rod": ["ore"]}
    assert plan(twice, (("rod", 1),), "door") == ["get ore", "craft rod", "craft door"]
    assert act(twice, (("rod", 1),), "craft door") is None
    assert act(twice, (("rod", 2),), "craft door") == (("door", 1),)
    assert show_bag((("rod", 2),)) == "have: rod rod"


def test_a_state_is_restored_and_named():
    episode = begin()
    assert isinstance(episode, Savable)
    assert isinstance(episode, HasStateName)
    episode.step("get log")
    saved = json.loads(json.dumps(episode.save()))
    episode.step("craft plank")
    assert episode.state_name == "have: plank"
    episode.restore(saved)
    assert (episode.state_name, episode.step("craft plank").observation) == ("have: log", "have: plank")


def test_the_expert_reaches_every_goal_in_the_shortest_way_and_errs_at_its_rate():
    for row in draw(depths=[1, 2, 3, 4, 5]):
        episode, shown, count = begin(row), row, 0
        while True:
            text, count = crafter(shown, np.random.default_rng(0)), count + 1
            outcome = episode.step(text)
            if outcome.done:
                break
            said = [{"role": "assistant", "content": text}, {"role": "user", "content": outcome.observation}]
            shown = shown | {"prompt": [*shown["prompt"], *said]}
        assert outcome.reward == 1
        assert count == json.loads(row["metadata"])["steps"]
    rng = np.random.default_rng(1)
    texts = [crafter(ROW, rng, error_rate=0.5) for _ in range(400)]
    assert texts.count("get log") / 400 == pytest.approx(0.5, abs=0.08)
    assert set(texts) == set(list_actions(RECIPES))
    over = ROW | {"prompt": [*ROW["prompt"], *({"role": "assistant", "content": t} for t in plan(RECIPES, (), "boat"))]}
    with pytest.raises(StepError, match="its goal was reached"):
        crafter(over, rng)


def test_splits_share_no_problem_and_have_the_depths_and_recipes_that_are_asked_for():
    train, test = draw(depths=[2, 4], others=2), draw(depths=[2, 4], others=2, split="test")
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    assert [row["family"] for row in train[:4]] == ["craft2", "craft4"] * 2
    assert {len(json.loads(row["metadata"])["recipes"]) for row in train} == {4, 6}
    with pytest.raises(StepError, match="lower `size`"):
        draw(split="test", test_share=1e-9, size=2)


def test_a_verdict_is_about_the_last_action():
    rows = draw("craft_verdicts", size=200)
    share = sum(row["answer"] == "bad" for row in rows) / 200
    assert share == pytest.approx(0.3, abs=0.1)  # at the rate 0.4 another action is taken, which may be as good
    for row in rows:
        recipes, goal = (json.loads(row["metadata"])[key] for key in ("recipes", "goal"))
        lines = row["prompt"][0]["content"].splitlines()
        actions = [line for line in lines if line.startswith(("get ", "craft "))]
        bag = ()
        for action in actions:
            before, bag = bag, act(recipes, bag, action) or bag
        nearer = len(plan(recipes, bag, goal)) < len(plan(recipes, before, goal))
        assert row["answer"] == ("good" if nearer else "bad")
        assert lines[-1] == "was the last action good or bad?"
        refused = act(recipes, before, actions[-1]) is None
        shown = ["?", show_bag(bag)] if refused else [show_bag(bag)]
        assert lines[-1 - len(shown) : -1] == (shown if plan(recipes, bag, goal) else [""])
    assert {row["answer"] for row in draw("craft_verdicts", errors=0.0)} == {"good"}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("", "use problems of `crafts`"),
        ('{"goal": "boat"}', "use problems of `crafts`"),
        ('{"goal": "sun", "recipes": {"boat": ["log"]}}', "no recipe makes its goal 'sun'; name one of: boat"),
        ('{"goal": "boat", "recipes": {"boat": "log"}}', 'a map such as {"plank": \\["log"\\]}'),
        ('{"goal": "boat", "recipes": [1]}', "a map such as"),
        ('{"goal": "a", "recipes": {"a": ["b"], "b": ["a"]}}', "these recipes need each other: a, b"),
    ],
)
def test_a_row_without_a_goal_that_can_be_reached_is_refused(metadata, message):
    with pytest.raises(StepError, match=message):
        begin(ROW | {"metadata": metadata})

"""Proofs by rewriting: terms, rules and tactics, goals with shortest proofs, the environment, its teachers, plans."""

import json
from itertools import product

import numpy as np
import pytest

from learning.data.rewriting import (
    LARGEST,
    apply_tactic,
    find_proof,
    list_steps,
    match_term,
    parse_term,
    read_goal,
    read_rules,
    write_term,
)
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Divisible, HasStateName, Savable
from learning.problems.rewriting_goals import RULES, rewriting_goals
from learning.teachers.rewriting import rewriter, rewriting_planner
from schemas.errors import StepError
from schemas.use import EnvUse


def make_row(goal="a*(b+0) = b*a", rules=RULES):
    metadata = json.dumps({"goal": goal, "rules": rules})
    return {
        "id": "r",
        "prompt": [{"role": "user", "content": f"show {goal}"}],
        "answer": None,
        "family": "f",
        "metadata": metadata,
    }


def build(**options):
    return build_environment(EnvUse.model_validate({"use": "prover", **options}), {})


def evaluate(text, **values):
    """The value of a term as arithmetic."""
    return eval(text, {}, values)


@pytest.mark.parametrize("text", ["a", "a*(b+0)", "(a+b)*c+1*0", "a+(b+c)", "a*(b*c)", "a*b*c+0", "(a+b)*(c+1)"])
def test_terms_are_read_and_written_with_no_more_brackets_than_needed(text):
    assert write_term(parse_term(text)) == text
    assert parse_term(f" ( {text} )") == parse_term(text)


@pytest.mark.parametrize("text", ["", "a+", "(a", "a)", "ab", "a-b", "A", "+", "()", "a" + "+a" * 400])
def test_what_is_no_term_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_term(text)


def test_a_pattern_binds_a_variable_once():
    pattern = parse_term("x+x")
    assert match_term(pattern, parse_term("a*b+a*b"), {}) == {"x": parse_term("a*b")}
    assert match_term(pattern, parse_term("a*b+b*a"), {}) is None
    assert match_term(parse_term("x*0"), parse_term("a*1"), {}) is None


@pytest.mark.parametrize("rules", [{"grow": "x = x+y"}, {"Two": "x = x"}, {"a b": "x = x"}, {"drop": "x+0"}])
def test_rules_that_are_none_are_refused(rules):
    with pytest.raises(ValueError, match="rule `"):
        read_rules(rules)
    with pytest.raises(StepError, match="need a `goal` and `rules`"):
        read_goal(make_row(rules=rules))


def test_a_tactic_names_a_rule_and_a_place():
    rules, term = read_rules(RULES), parse_term("(a+0)*(b+0)")
    made = {tactic: write_term(changed) for tactic, changed in list_steps(term, rules, LARGEST)}
    assert made["zero"] == "a*(b+0)"
    assert made["zero 2"] == "(a+0)*b"
    assert made["turn"] == "(b+0)*(a+0)"
    assert made["swap 2"] == "(a+0)*(0+b)"
    assert apply_tactic(term, rules, "  zero   2 ", LARGEST) == parse_term("(a+0)*b")
    for wrong in ("zero 3", "zero 0", "one", "", "zero zero", "swap 9", "ZERO"):
        assert apply_tactic(term, rules, wrong, LARGEST) is None
    assert apply_tactic(parse_term("a*(b+c)"), rules, "spread", 3) is None  # four leaves
    assert apply_tactic(parse_term("a+a"), rules, "swap", LARGEST) is None  # nothing changes


def test_every_step_keeps_the_value_and_proofs_are_shortest():
    for row in rewriting_goals(size=12, split="train", steps=[1, 2, 3], leaves=[3, 4], letters=2):
        goal, steps = read_goal(row), json.loads(row["metadata"])["steps"]
        proof = find_proof(goal.left, goal.right, goal.rules, LARGEST)
        assert proof is not None
        assert len(proof) == steps
        # No shorter sequence of tactics leads there.
        for length in range(steps):
            reached = {goal.left}
            for _ in range(length):
                reached = {made for term in reached for _, made in list_steps(term, goal.rules, LARGEST)}
            assert goal.right not in reached
        for a, b in product((2, 5), (3, 7)):
            left, right = (evaluate(write_term(side), a=a, b=b) for side in (goal.left, goal.right))
            assert left == right


def test_goals_are_held_out_and_have_their_difficulty():
    train = rewriting_goals(size=60, split="train", steps=[1, 2], leaves=[3])
    test = rewriting_goals(size=20, split="test", steps=[1, 2], leaves=[3], seed=5)
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    assert len({row["prompt"][0]["content"] for row in train}) == 60
    assert [row["family"] for row in train[:4]] == ["rewriting1", "rewriting2"] * 2
    assert rewriting_goals(size=60, split="train", steps=[1, 2], leaves=[3]) == train
    shown = rewriting_goals(size=1, split="train", instruction="Prove ")[0]["prompt"][0]["content"]
    assert shown.startswith("Prove ")
    with pytest.raises(StepError, match="gave 0 different train problems"):
        rewriting_goals(size=2, split="train", steps=[8], leaves=[1])
    with pytest.raises(StepError, match="rule `bad"):
        rewriting_goals(size=2, split="train", rules={"bad": "x"})


def test_a_proof_ends_when_both_sides_are_the_same():
    episode = build(penalty=0.5).begin(make_row(), 0)
    assert isinstance(episode, HasStateName)
    assert episode.state_name == "a*(b+0) = b*a"
    refused = episode.step("one")
    assert (refused.ok, refused.done, refused.reward) == (False, False, -0.5)
    assert refused.observation == "?\na*(b+0) = b*a"
    assert episode.step("zero").observation == "a*b = b*a"
    last = episode.step("turn")
    assert (last.done, last.reward, last.ok) == (True, 1.0, True)


def test_a_mistake_may_end_the_episode():
    outcome = build(mistakes="end").begin(make_row(), 0).step("zero 2")
    assert (outcome.done, outcome.reward, outcome.ok) == (True, 0.0, False)


def test_a_saved_state_is_continued():
    first, second = (build().begin(make_row(), 0) for _ in range(2))
    assert isinstance(first, Savable)
    first.step("zero")
    second.restore(json.loads(json.dumps(first.save())))
    assert second.state_name == "a*b = b*a"
    assert second.step("turn") == first.step("turn")


@pytest.mark.parametrize(
    "metadata",
    ['{"goal": "a = b"}', '{"goal": "a", "rules": {"r": "x = x"}}', '{"goal": "a = b", "rules": {}}', "[]", "{}"],
)
def test_rows_without_a_goal_are_refused(metadata):
    with pytest.raises(StepError, match="need a `goal` and `rules`"):
        build().begin(make_row() | {"metadata": metadata}, 0)


def test_a_plan_divides_a_goal_into_goals_that_add_up():
    world = build(largest=6)
    assert isinstance(world, Divisible)
    parts = world.divide(make_row(), "a*b\n\n")
    assert [json.loads(part["metadata"])["goal"] for part in parts] == ["a*(b+0) = a*b", "a*b = b*a"]
    assert [part["prompt"][0]["content"] for part in parts] == ["show a*(b+0) = a*b", "show a*b = b*a"]
    assert [part["id"] for part in parts] == ["r/0", "r/1"]
    assert len(world.divide(make_row(), "a*(b+0)\na*b\na*b")) == 2  # nothing is to be shown between equal terms
    for wrong in ("", "a*", "first swap", "a+a+a+a+a+a+a", "(" * 5000):
        assert world.divide(make_row(), wrong) == []


def speak(row, teacher=rewriter, seed=0, **options):
    return teacher(row, np.random.default_rng(seed), **options)


def test_the_teacher_proves_from_any_state_and_errs_at_its_rate():
    row = make_row()
    assert speak(row) in ("zero", "turn", "swap")
    later = row | {
        "prompt": [*row["prompt"], {"role": "assistant", "content": "zero"}, {"role": "user", "content": ""}]
    }
    assert speak(later) == "turn"
    assert speak(row, error_rate=1.0) != speak(row)
    assert speak(later, error_rate=1.0) == "turn"  # nothing else is possible
    after = later | {"prompt": [*later["prompt"], {"role": "assistant", "content": "nonsense"}]}
    assert speak(after) == "turn"
    with pytest.raises(StepError, match="no proof of `a = b`"):
        speak(make_row("a = b"))
    with pytest.raises(StepError, match="shows 0 of 2 turns"):
        speak(row | {"metadata": json.dumps(json.loads(row["metadata"]) | {"turn": 2})})


def test_the_planner_names_terms_on_a_shortest_proof():
    row = make_row("(a+0)*(b+0)*1 = b*a")
    plan = speak(row, rewriting_planner, parts=2)
    world = build()
    goals = [read_goal(part) for part in world.divide(row, plan)]
    lengths = [len(find_proof(*goal, LARGEST) or ()) for goal in goals]
    whole = find_proof(*read_goal(row), LARGEST)
    assert whole is not None
    assert lengths == [2, 2]
    assert sum(lengths) == len(whole) == 4
    assert len(speak(row, rewriting_planner, parts=9).splitlines()) == 3
    wrong = speak(row, rewriting_planner, error_rate=1.0)
    assert wrong not in (plan, "")
    assert speak(make_row("a = b"), rewriting_planner) == speak(make_row("a+b = b+a"), rewriting_planner) == ""

"""Turn orders: who speaks next, and what is shown."""

import numpy as np
import pytest

from learning.collection.turn_orders import (
    attempts,
    by_decision,
    in_order,
    on_call,
    plan_and_repair,
    shared_memory,
)
from learning.lookup import bind
from learning.samples.conversation import NextTurn, RoleTurn
from schemas.errors import StepError
from schemas.roles import TurnOrderUse

ROLES = ["plans", "acts", "checks"]


def turns(*said):
    return [RoleTurn(role, text) for role, text in said]


def order(said, **options):
    return in_order(ROLES, turns(*said), np.random.default_rng(0), **options)


def test_roles_speak_in_order_and_see_what_is_new_to_them():
    said = []
    expected = ["", "plans: 0", "plans: 0\nacts: 1", "acts: 1\nchecks: 2", "checks: 2\nplans: 3", "plans: 3\nacts: 4"]
    for place, message in enumerate(expected):
        following = order(said, rounds=2)
        assert (following.role, following.message) == (ROLES[place % 3], message)
        said.append((following.role, str(place)))
    assert order(said, rounds=2) == NextTurn()


def test_the_form_of_what_is_shown_is_filled_in_once():
    said = [("plans", "{role}"), ("acts", "{text}")]
    assert order(said, text="<{role}|{text}>").message == "<plans|{role}>\n<acts|{text}>"
    assert order(said, text="{text}", shows="last").message == "{text}"


def test_a_turn_with_the_pattern_is_the_last():
    assert order([("plans", "all done")], until="done$").role is None
    assert order([("plans", "done?")], until="done$").role == "acts"


def test_a_role_is_left_out_by_chance():
    picked = [in_order(ROLES, [], np.random.default_rng(seed), chance={"plans": 0.75}).role for seed in range(4000)]
    assert set(picked) == {"plans", "acts"}
    assert picked.count("plans") / 4000 == pytest.approx(0.75, abs=0.02)
    # After a role was left out, the order goes on behind the one that spoke.
    assert order([("acts", "x")], chance={"plans": 0.0}).role == "checks"
    assert order([("acts", "x"), ("checks", "y")], chance={"plans": 0.0}).role is None
    assert order([("acts", "x"), ("checks", "y")], chance={"plans": 0.0}, rounds=2).role == "acts"
    with pytest.raises(StepError, match="chance of plan: the roles are plans, acts, checks"):
        order([], chance={"plan": 0.5})


def test_the_first_role_calls_the_others():
    assert on_call(ROLES, []) == NextTurn("plans")
    assert on_call(ROLES, turns(("plans", "checks: is it 3?"))) == NextTurn("checks", "is it 3?")
    assert on_call(ROLES, turns(("plans", "checks: 3?"), ("checks", "no"))) == NextTurn("plans", "no")
    for text in ("it is 3", "stranger: hello", "plans: me again"):
        assert on_call(ROLES, turns(("plans", text))) == NextTurn()
    with pytest.raises(StepError, match="two groups"):
        on_call(ROLES, turns(("plans", "x")), call="(x)")


def test_attempts_begin_with_the_note_alone():
    row = {"id": "q", "metadata": '{"visit": "red: sun"}'}
    said = turns()
    assert attempts(ROLES[:2], said, row, shows="visit") == NextTurn("plans", "red: sun")
    assert attempts(ROLES[:2], said, row) == NextTurn("plans")
    for text in ("note", "first", "second"):
        said += turns((ROLES[0] if text == "note" else ROLES[1], text))
        following = attempts(ROLES[:2], said, row, n=2)
        assert following == (NextTurn() if text == "second" else NextTurn("acts", "note", begins="sample"))


def test_attempts_refuse_other_roles_and_a_problem_without_the_entry():
    with pytest.raises(StepError, match="give two roles, not 3"):
        attempts(ROLES, [], {})
    with pytest.raises(StepError, match="row q has no 'visit' in its metadata"):
        attempts(ROLES[:2], [], {"id": "q", "metadata": "{}"}, shows="visit")


MEMORY = {"until": "^stop$", "rounds": 2, "text": "{text}"}


def remember(said, **options):
    return shared_memory(["plans", "acts", "ends"], turns(*said), **{**MEMORY, **options})


def test_a_memory_is_shown_from_the_beginning_in_every_turn():
    said = []
    for place, message in enumerate(["", "0", "0\n1", "0\n1\n2"]):
        following = remember(said)
        assert following == NextTurn(["plans", "acts"][place % 2], message, begins="context")
        said.append((following.role, str(place)))
    assert remember(said) == NextTurn("ends", "0\n1\n2\n3", begins="context")
    assert remember([*said, ("ends", "so")]) == NextTurn()


def test_a_round_may_be_the_last_and_a_memory_leave_roles_out():
    assert remember([("plans", "stop")]).role == "acts"
    said = [("plans", "0"), ("acts", "stop")]
    assert remember(said, remembers=["plans"]) == NextTurn("ends", "0", begins="context")
    assert remember(said, last_only=["ends"]) == NextTurn("ends", "stop", begins="context")


def test_a_memory_refuses_roles_that_do_not_exist():
    with pytest.raises(StepError, match="there is no role checks; roles: plans, acts, ends"):
        remember([], remembers=["checks"])
    with pytest.raises(StepError, match="at least two roles"):
        shared_memory(["plans"], [], until="x")


def test_a_plan_is_written_and_repaired_until_a_check_is_content():
    said = [("plans", "p"), ("acts", "1"), ("checks", "bad"), ("acts", "2"), ("checks", "bad")]

    def following(count, **options):
        return plan_and_repair(ROLES, turns(*said[:count]), until="good", **options)

    expected = [("plans", ""), ("acts", "p"), ("checks", "1"), ("acts", "bad"), ("checks", "2"), (None, "")]
    assert [(one.role, one.message) for one in map(following, range(6))] == expected
    assert [one.begins for one in map(following, range(6))] == ["turn", "context", "turn", "context", "turn", "turn"]
    assert following(5, rounds=3).role == "acts"
    assert following(3, rounds=1) == NextTurn()
    assert plan_and_repair(ROLES, turns(*said[:2], ("checks", "very good")), until="good") == NextTurn()
    with pytest.raises(StepError, match="give three roles, not 1"):
        plan_and_repair(["plans"], [], until="good")


THREE = ["asks", "checks", "tries"]
PROBLEM = {"id": "p", "answer": "zed", "metadata": '{"documents": ["bam twin zed", "lom ally fir", "gus ally nip"]}'}


def right(rows, completions):
    return [None if text == "?" else float(text == row["answer"]) for row, text in zip(rows, completions, strict=True)]


def propose(*said, read=("bam twin zed\ntok ally bam", "bam twin zed"), row=PROBLEM, roles=THREE, **options):
    use = {"use": "proposals", "right": f"{__name__}:right", **options}
    made = [RoleTurn(role, text, observed=read if role == "asks" else ()) for role, text in said]
    supplies = {"roles": roles, "turns": made, "row": row, "rng": np.random.default_rng(0)}
    return bind(TurnOrderUse.model_validate(use), "turn_order").ask(0, supplies)


def test_a_question_is_checked_with_what_was_read_and_tried_if_the_reply_is_right():
    asked, checked = ("asks", " twin of bam? "), ("checks", "zed")
    assert propose() == NextTurn("asks")
    assert propose(asked) == NextTurn("checks", "bam twin zed\ntok ally bam\ntwin of bam?")
    assert propose(asked, text="{question} {documents}", read=("{question}",)).message == "twin of bam? {question}"
    for reply in ("bam", "?"):
        assert propose(asked, ("checks", reply)) == NextTurn()
    assert propose(asked, checked, n=2) == NextTurn("tries", "twin of bam?", begins="sample")
    assert propose(asked, checked, ("tries", "x"), n=2) == NextTurn("tries", "twin of bam?", begins="sample")
    assert propose(asked, checked, ("tries", "x"), ("tries", "zed"), n=2) == NextTurn()


def test_other_documents_stand_among_those_that_were_read_without_the_answer():
    shown = propose(("asks", "twin of bam?"), read=("tok ally bam",), noise=5).message.splitlines()
    assert sorted(shown[:-1]) == ["gus ally nip", "lom ally fir", "tok ally bam"]
    assert len(propose(("asks", "twin of bam?"), read=("tok ally bam",), noise=1).message.splitlines()) == 3


def test_what_is_no_question_is_not_checked():
    for text in ("twin of bam", "a?\nb?", "Who is ZED of bam?", "?"):
        assert propose(("asks", text)) == NextTurn()
    assert propose(("asks", "zedal of bam?")).role == "checks"
    assert propose(("asks", "twin of bam?"), read=()) == NextTurn()
    assert propose(("asks", "<q>twin</q>"), question=".*<q>(.*)</q>").message.endswith("\ntwin")
    with pytest.raises(StepError, match="one group, which is the question"):
        propose(("asks", "a?"), question="(a)(b)")
    with pytest.raises(StepError, match="give three roles, not 2"):
        propose(roles=THREE[:2])
    with pytest.raises(StepError, match="row p has no answer"):
        propose(row=PROBLEM | {"answer": None})


def test_a_decision_leads_to_a_role():
    choices = {"choices": {"yes": "acts"}, "otherwise": "checks"}
    assert by_decision(ROLES, [], **choices) == NextTurn("plans")
    assert by_decision(ROLES, turns(("plans", " yes\n")), **choices) == NextTurn("acts")
    assert by_decision(ROLES, turns(("plans", "yes!")), **choices) == NextTurn("checks")
    assert by_decision(ROLES, turns(("plans", "yes"), ("acts", "3")), **choices) == NextTurn()
    for wrong in ({"choices": {"yes": "plans"}, "otherwise": "acts"}, {"choices": {"yes": "acts"}, "otherwise": "x"}):
        with pytest.raises(StepError, match="no role that can answer: acts, checks"):
            by_decision(ROLES, [], **wrong)

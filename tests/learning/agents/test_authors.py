"""A meta-agent and an extractor behind a server: what they say is taken apart, checked, and paid for once."""

import json

import pytest

from learning.agents.drafting import Drafting
from learning.agents.rollouts import Rollout
from learning.api.spending import SpendingAccount
from learning.lookup import bind
from learning.sandbox.run import available
from schemas.agent import Agent, AuthorUse, ExtractorUse
from schemas.errors import StepError
from tests.teacher_server import Teacher, serving

DRAFT = {
    "description": "turns texts",
    "tools": [
        {
            "name": "back",
            "code": "def back(query):\n    return query[::-1]\n",
            "tests": [{"query": "ab", "answer": "ba"}],
        }
    ],
    "context": {"system": "Call back: and a text."},
}


@pytest.fixture
def account(tmp_path):
    return SpendingAccount(tmp_path / "remote", "a-step")


def said(address):
    return {"base_url": address, "model": "m", "name": "meta", "backoff": 0.001, "max_backoff": 0.002}


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_a_reply_that_is_no_draft_is_refused_and_the_next_one_taken(account):
    replies = iter(["I would rather not.", f"Here it is:\n```json\n{json.dumps(DRAFT)}\n```"])
    orders, answers = [], {}

    def answer(body):
        order = body["messages"][-1]["content"]
        if order not in answers:
            orders.append(order)
            answers[order] = next(replies)
        return answers[order], "stop"

    teacher = Teacher(answer)
    with serving(teacher) as address:
        author = bind(AuthorUse.model_validate({"use": "endpoint", "endpoint": said(address)}), "author")
        given = Agent.model_validate({"environment": "tools", "toolkit": ["calculator"]})
        first = Drafting(given)
        agent = first.written(author, "Turn texts around.", 3, {"account": account})
        # A step that starts again pays nothing again, and comes to the same.
        again = Drafting(given)
        assert again.written(author, "Turn texts around.", 3, {"account": account}) == agent
        assert again.lines == first.lines
    assert len(teacher.paid) == 2
    assert agent.tool_names == ["calculator", "back"]
    assert (agent.description, agent.context.system) == ("turns texts", "Call back: and a text.")
    assert [(line["accepted"], line["reasons"]) for line in first.lines] == [
        (False, ["the reply has no JSON object: Expecting value: line 1 column 1 (char 0)"]),
        (True, []),
        (True, []),
    ]
    assert "Tools that there are: calculator: Evaluate an expression" in orders[0]
    assert "Refused so far: nothing" in orders[0]
    assert "Refused so far: draft: the reply has no JSON object" in orders[1]


def test_what_a_server_says_of_a_group_becomes_an_experience(account):
    row = {"id": "a", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "4-2"}], "answer": "2"}
    ranked = [Rollout(("search: 4-2", "bolt"), ("4-2 bolt", ""), 1.0), Rollout(("6",), ("",), 0.25)]
    shown = []

    def answer(body):
        shown.append(body["messages"][-1]["content"])
        return " Look it up\nfirst. ", "stop"

    with serving(Teacher(answer)) as address:
        use = ExtractorUse.model_validate({"use": "endpoint", "endpoint": said(address)})
        supplies = {"row": row, "rollouts": ranked, "experiences": ["old"], "account": account}
        assert bind(use, "extractor").ask(0, supplies) == ["old", "Look it up first."]
        # The system message holds what is known: it is no part of the problem.
        (text,) = set(shown)
        best = "The best attempt (score 1):\nsearch: 4-2\n=> 4-2 bolt\nbolt"
        assert text.startswith(f"Problem: 4-2\n\n{best}\n\nThe worst attempt (score 0.25):\n6\n")
        odd = ExtractorUse.model_validate({"use": "endpoint", "endpoint": said(address), "order": "{wurst}"})
        with pytest.raises(StepError, match=r"no field \{wurst\}"):
            bind(odd, "extractor").ask(0, supplies)

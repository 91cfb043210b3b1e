"""The first messages of a role."""

import pytest

from learning.sampling.conversations import open_messages
from schemas.roles import RoleSpec

PLAIN = {"prompt": [{"role": "user", "content": "1 + 1?"}]}
LONG = {
    "prompt": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "1 + 1?"},
    ]
}


@pytest.mark.parametrize(
    ("prompt", "message", "expected"),
    [
        (None, "a: 3", "1 + 1?\na: 3"),
        (None, "", "1 + 1?"),
        ("{message}", "K", "K"),
        ("Check {message} for {question}", "{question}", "Check {question} for 1 + 1?"),
    ],
)
def test_the_prompt_shows_the_problem_and_what_the_turn_order_says(prompt, message, expected):
    spec = RoleSpec() if prompt is None else RoleSpec(prompt=prompt)
    assert open_messages(PLAIN, spec, message) == [{"role": "user", "content": expected}]


def test_earlier_messages_stay_and_the_system_message_is_that_of_the_role():
    assert open_messages(LONG, RoleSpec(), "") == LONG["prompt"]
    own = open_messages(LONG, RoleSpec(system="Be strict."), "")
    assert own == [{"role": "system", "content": "Be strict."}, *LONG["prompt"][1:]]
    assert LONG["prompt"][0]["content"] == "Be kind."

"""Requests to a model behind an endpoint for one text or one JSON object. Importing the client takes a second."""

import json
from typing import Any

from learning.api.client import ask
from learning.api.requests import Answer, make_chat_question
from learning.api.spending import SpendingAccount
from schemas.base import JsonObject
from schemas.endpoint import Endpoint

LONGEST, DEEPEST = 1_000_000, 50
"""Limits of the characters of a JSON object, and of its nesting."""


def ask_text(
    endpoint: Endpoint, account: SpendingAccount, order: str, number: int, temperature: float, max_tokens: int
) -> str:
    """Return the reply to a message, empty if there is none; `number` distinguishes equal questions.

    Raise StepError as `learning.api.client.ask` does.
    """
    question = make_chat_question(
        [{"role": "user", "content": order}], number, temperature=temperature, max_tokens=max_tokens
    )
    (answer,) = ask(endpoint, account, [question]).answers
    return answer.text if isinstance(answer, Answer) else ""


def ask_object(
    endpoint: Endpoint, account: SpendingAccount, order: str, number: int, temperature: float, max_tokens: int
) -> JsonObject:
    """Return the JSON object in a reply, from its first to its last brace; raise ValueError if there is none."""
    return find_object(ask_text(endpoint, account, order, number, temperature, max_tokens))


def find_object(text: str) -> JsonObject:
    """Return the JSON object in a text, from its first to its last brace; raise ValueError if there is none.

    An object that is nested deeper than `DEEPEST` levels or has more than `LONGEST` characters is rejected as well.
    """
    start, end = text.find("{"), text.rfind("}")
    if end - start > LONGEST:
        raise ValueError(f"the reply has a JSON object of more than {LONGEST} characters")
    try:
        value = json.loads(text[start : end + 1])
        if not isinstance(value, dict):
            raise ValueError("the reply has no JSON object")
        level: list[Any] = [value]
        for _ in range(DEEPEST):
            level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
            level = [item for item in level if isinstance(item, dict | list)]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reply has no JSON object: {error}") from None
    if level:
        raise ValueError(f"the reply has a JSON object nested more than {DEEPEST} levels deep")
    return value

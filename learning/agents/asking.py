"""A model behind an endpoint, asked for one text or one JSON object. Its client takes a second to import."""

import json
from typing import Any

from learning.remote.client import ask
from learning.remote.desk import Desk
from learning.remote.question import Answer, chat
from schemas.endpoint import Endpoint


def told(endpoint: Endpoint, desk: Desk, order: str, number: int, temperature: float, max_tokens: int) -> str:
    """The reply to a message, empty where there is none; `number` tells equal questions apart.

    Raises StepError as `learning.remote.client.ask` does.
    """
    question = chat([{"role": "user", "content": order}], number, temperature=temperature, max_tokens=max_tokens)
    (answer,) = ask(endpoint, desk, [question]).answers
    return answer.text if isinstance(answer, Answer) else ""


def told_object(
    endpoint: Endpoint, desk: Desk, order: str, number: int, temperature: float, max_tokens: int
) -> dict[str, Any]:
    """The JSON object in a reply, from its first to its last brace. Raises ValueError where there is none."""
    text = told(endpoint, desk, order, number, temperature, max_tokens)
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1])
    except ValueError as error:
        raise ValueError(f"the reply holds no JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("the reply holds no JSON object")
    return found

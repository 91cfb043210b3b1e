"""Questions that are asked in the order of their dependencies: an option of solvers, checked when a recipe is read."""

from typing import Annotated

from pydantic import AfterValidator, Field

from schemas.base import Schema


class Question(Schema):
    """One question of a graph."""

    ask: str = Field(min_length=1)
    """What is asked."""
    after: list[str] = []
    """Names of the questions whose answers are shown with it; edges of the graph end here."""


def order_questions(questions: dict[str, Question]) -> list[str]:
    """Return the names so that each comes after those that it depends on, else as they are written.

    Raise ValueError for an unknown name, one that is there twice, and a cycle.
    """
    for name, question in questions.items():
        if unknown := [one for one in question.after if one not in questions]:
            raise ValueError(
                f"`{name}` comes after `{unknown[0]}`, which is no question; there are {', '.join(questions)}"
            )
        if len(set(question.after)) < len(question.after):
            raise ValueError(f"`{name}` comes after a question twice")
    order: list[str] = []
    while len(order) < len(questions):
        ready = [
            name for name, question in questions.items() if name not in order and set(question.after) <= set(order)
        ]
        if not ready:
            left = [name for name in questions if name not in order]
            raise ValueError(f"the questions {', '.join(left)} wait for each other: remove an edge of the cycle")
        order.append(ready[0])
    return order


def _check(questions: dict[str, Question]) -> dict[str, Question]:
    asked = {name for question in questions.values() for name in question.after}
    order_questions(questions)
    if len(ends := [name for name in questions if name not in asked]) != 1:
        raise ValueError(
            f"the questions {', '.join(ends)} end the graph; the answer to exactly one, the last, is the action"
        )
    return questions


QuestionGraph = Annotated[dict[str, Question], Field(min_length=1, max_length=64), AfterValidator(_check)]
"""Questions by name: a graph without cycles, with one question that no other depends on."""

"""Preference pairs in the formats of TRL and UltraFeedback: a prompt with a chosen and a rejected completion."""

import json
import math
from typing import Any

from learning.data.rows import Row
from learning.data.sources.columns import Values
from learning.data.sources.conversations import Message, read_messages
from learning.data.sources.records import BadRow
from learning.data.sources.texts import add_system, read_prompt, read_side, read_text

SIDES = ("chosen", "rejected")
SCORE_KEYS = ("overall_score", "score")
LABELS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
"""What a label of a completion may be, in lower case."""
TEXT_KEYS = ("response", "content", "text", "completion")


def convert_preference(fields: Values) -> Row:
    """Return a pair with its prompt: that of the row, or the messages with which both sides begin.

    `score_chosen` and `score_rejected` become `chosen_score` and `rejected_score` of the metadata; their difference is
    the margin of a pair without one.
    """
    whole = {side: _read_conversation(fields[side], side) for side in SIDES}
    if whole["chosen"] is not None and whole["rejected"] is not None:
        pair = _split_prompt(fields, whole["chosen"], whole["rejected"])
    elif fields.get("prompt") is None:
        raise BadRow("no `prompt`, and `chosen` and `rejected` are no conversations that begin with one")
    else:
        pair = {"prompt": read_prompt(fields), **{side: read_side(fields, side) for side in SIDES}}
    return _check_pair(pair) | _read_scores(fields)


def _read_conversation(value: Any, side: str) -> list[Message] | None:
    """Return a side that is a whole conversation; None for a text, or messages that begin with the assistant's."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return None
    first = value[0].get("role", value[0].get("from"))
    return None if first in ("assistant", "gpt") else read_messages(value, side)


def _split_prompt(fields: Values, chosen: list[Message], rejected: list[Message]) -> Row:
    given = fields.get("prompt")
    if isinstance(given, list):
        prompt = read_messages(given, "prompt")
        if prompt != chosen[: len(prompt)] or prompt != rejected[: len(prompt)]:
            raise BadRow("`prompt` is not what `chosen` and `rejected` begin with")
    else:
        prompt = _find_common_beginning(chosen, rejected)
    if isinstance(given, str) and given.strip() and prompt:
        asked = next((m["content"] for m in prompt if m["role"] == "user"), None)
        if given != asked:
            raise BadRow("`prompt` is not the first question of `chosen`")
    if not prompt:
        raise BadRow("`chosen` and `rejected` begin with different messages, so there is no common prompt")
    sides = {"chosen": chosen[len(prompt) :], "rejected": rejected[len(prompt) :]}
    return {"prompt": add_system(prompt, fields), **sides}


def _find_common_beginning(chosen: list[Message], rejected: list[Message]) -> list[Message]:
    """Return the messages that both have before a turn of the assistant."""
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    while same and chosen[same - 1]["role"] == "assistant":  # both took the same turn, and saw different things
        same -= 1
    return chosen[:same]


def _check_pair(pair: Row) -> Row:
    for side in SIDES:
        if not pair[side] or {pair[side][0]["role"], pair[side][-1]["role"]} != {"assistant"}:
            raise BadRow(f"`{side}` does not begin and end with a message of the assistant after the prompt")
    if pair["chosen"] == pair["rejected"]:
        raise BadRow("`chosen` and `rejected` are equal")
    return pair


def _read_scores(fields: Values) -> Row:
    scores = {side: fields.get(f"score_{side}") for side in SIDES}
    made: Row = {}
    margin = fields.get("margin")
    if all(score is not None for score in scores.values()):
        numbers = {side: read_number(score, f"score_{side}") for side, score in scores.items()}
        made["notes"] = {f"{side}_score": number for side, number in numbers.items()}
        if margin is None:
            margin = numbers["chosen"] - numbers["rejected"]
    return made | {"margin": None if margin is None else read_number(margin, "margin")}


def read_number(value: Any, name: str) -> float:
    """Return a number, also one that is written as text. Raise BadRow."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRow(f"`{name}` is no number: {str(value)[:80]!r}")
    return number


def convert_scored(fields: Values) -> Row:
    """Return the pair of the completion with the highest score and the one with the lowest, of equals the first."""
    completions = fields["completions"]
    if isinstance(completions, str):
        try:
            completions = json.loads(completions)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"`completions` is no JSON: {error}") from error
    if not isinstance(completions, list) or len(completions) < 2:
        raise BadRow("`completions` is no list of at least two completions")
    scored = [_read_scored(one, f"completion {i}") for i, one in enumerate(completions, 1)]
    best, worst = max(scored, key=lambda one: one[1]), min(scored, key=lambda one: one[1])
    if best[1] == worst[1]:
        raise BadRow(f"all completions have score {best[1]:g}, so none is preferred")
    asked = fields if fields.get("prompt") is not None else fields | {"prompt": fields.get("instruction")}
    if asked["prompt"] is None:
        raise BadRow("no `prompt` and no `instruction`")
    pair = {"prompt": read_prompt(asked), "chosen": [best[0]], "rejected": [worst[0]]}
    notes = {"chosen_score": best[1], "rejected_score": worst[1]}
    return _check_pair(pair) | {"margin": best[1] - worst[1], "notes": notes}


def convert_label(fields: Values) -> Row:
    """Return a row with one side: the completion is chosen if its label is true, else rejected."""
    label = fields["label"]
    good = LABELS.get(str(label).strip().lower())
    if good is None:
        raise BadRow(f"`label` is {str(label)[:80]!r}; it must be true or false")
    side = "chosen" if good else "rejected"
    completion = read_side(fields, "completion")
    return {"prompt": read_prompt(fields), "chosen": [], "rejected": [], side: completion, "margin": None}


def _read_scored(one: Any, where: str) -> tuple[Message, float]:
    if not isinstance(one, dict):
        raise BadRow(f"{where} is no object but {type(one).__name__}")
    text = next((key for key in TEXT_KEYS if one.get(key) is not None), None)
    score = next((key for key in SCORE_KEYS if one.get(key) is not None), None)
    if text is None or score is None:
        raise BadRow(f"{where} has no {'text' if text is None else 'score'}; its keys: {', '.join(map(str, one))}")
    return {"role": "assistant", "content": read_text(one, text)}, read_number(one[score], f"{where}, {score}")

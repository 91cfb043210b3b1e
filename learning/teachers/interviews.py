"""Teachers that ask a partner for facts and conclude, as the environments `interview` and `profiled` read them."""

import re
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.profiles import split_profile, write_profile
from learning.data.rows import Row, read_metadata
from schemas.errors import StepError

Rate = Annotated[float, Field(ge=0, le=1)]
WORD = re.compile(r"\w+")


def interviewer(
    row: Row,
    rng: np.random.Generator,
    *,
    questions: Annotated[int, Field(ge=0)] = 2,
    order: Literal["random", "worth"] = "random",
    question: str = "{fact}?",
    conclusion: str | None = "answer: {answer}",
    tag: str | None = None,
    repeats: Rate = 0.0,
    slips: Rate = 0.0,
) -> str:
    """Ask for hidden facts, one per turn, and conclude after `questions` of them.

    Facts are asked for in random `order`, or the most valuable first (`worth`); at the rate `repeats` for one that is
    known. The `conclusion` has {answer}, the row's, and {facts}: the known ones with the value `yes`. Without it (null)
    questions go on as long as there are turns; when nothing is left to ask, a known value is said. With a `tag` every
    turn begins with the known facts as a profile, in which each value is another one at the rate `slips`. Raise
    StepError for a row without facts.
    """
    metadata = read_metadata(row)
    facts: dict[str, str] = metadata.get("facts") or {}
    if not facts:
        raise StepError(f"teacher interviewer: row {row['id']}: its metadata have no `facts` to ask for")
    turns = [split_profile(str(m["content"]), tag or "")[1] for m in row["prompt"] if m["role"] == "assistant"]
    asked = [fact for turn in turns for fact in WORD.findall(turn) if fact in facts]
    known = [fact for fact in facts if fact in asked or fact in metadata.get("shown", ())]
    left = [fact for fact in facts if fact not in known]
    start = "" if tag is None else write_profile({fact: _recall(fact, facts, slips, rng) for fact in known}, tag)
    if conclusion is not None and (len(turns) >= questions or not left):
        named = " ".join(fact for fact in known if facts[fact] == "yes")
        return start + conclusion.format(answer=row["answer"], facts=named).strip()
    if not left:
        return start + facts[known[int(rng.integers(len(known)))]]
    worth = metadata.get("worth") or {}
    if known and rng.random() < repeats:
        chosen = known[int(rng.integers(len(known)))]
    elif order == "worth":
        chosen = max(left, key=lambda fact: worth.get(fact, 0.0))
    else:
        chosen = left[int(rng.integers(len(left)))]
    return start + question.format(fact=chosen)


def _recall(fact: str, facts: dict[str, str], slips: float, rng: np.random.Generator) -> str:
    """Return the value of a fact, or sometimes that of another one."""
    others = [value for name, value in facts.items() if name != fact]
    return others[int(rng.integers(len(others)))] if others and rng.random() < slips else facts[fact]

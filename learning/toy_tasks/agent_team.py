"""A team of rules that answers questions about documents and small questions for Python: its runs are to be distilled.

`river of twin of bam?` takes two searches, `squares below 12?` a program. The planner says what to do, the searcher and
the coder call tools, the reflector reads what came out and says whether that suffices.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.agent_chains import AgentCall, show_state, write_call
from learning.data.rows import Row, read_rows, write_rows
from learning.tools.calls import python, search
from learning.toy_tasks.atlas import RELATIONS, find_document, list_texts, make_atlas
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row

TOOLS = ("search", "code")
POWERS = {"numbers": 1, "squares": 2, "cubes": 3}
"""What a question for Python adds up, each with its exponent."""
DRAWS = 60
"""Draws per row after which there are too few."""


def team_tasks(
    *,
    size: Size,
    split: Split,
    seed: int = 0,
    kinds: Annotated[list[Literal["lookup", "sum"]], Field(min_length=1)] = ["lookup", "lookup", "sum"],  # noqa: B006
    towns: Annotated[int, Field(ge=4, le=100)] = 8,
    worlds: Annotated[int, Field(ge=1)] = 40,
    most: Annotated[int, Field(ge=3)] = 90,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` tasks, cycling through `kinds`: look-ups in the documents of the row, and sums for a program.

    A look-up is of one relation of a town or of its twin. A sum such as `squares below 12?` is of all numbers from 0 up
    to one below the limit, which is at most `most`. Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def draw(rows: dict[str, Row]) -> Row | None:
        if kinds[len(rows) % len(kinds)] == "sum":
            what, limit = str(rng.choice(list(POWERS))), int(rng.integers(2, most + 1))
            row = make_row("sum", f"{what} below {limit}?", str(sum(n ** POWERS[what] for n in range(limit))), {})
        else:
            row = _draw_lookup(rng, towns, int(rng.integers(worlds)))
        return row if row is not None and is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, DRAWS * size, "team_tasks", split, "raise `most`, `towns` or `worlds`")


def _draw_lookup(rng: np.random.Generator, towns: int, world: int) -> Row | None:
    documents = make_atlas(towns, world)
    start = documents[int(rng.integers(len(documents)))][0]
    path = [*(["twin"] if rng.random() < 0.5 else []), str(rng.choice(RELATIONS))]
    town = start
    for relation in path:
        document = find_document(f"{town} {relation}", documents)
        if document[:2] != (town, relation):
            return None
        town = document[2]
    text = f"{' of '.join([*path[::-1], start])}?"
    return make_row("lookup", text, town, {"documents": list_texts(documents)}, salt=f"lookup {world}")


def play_team(context: Any, *, slips: Rate = 0.0) -> dict[str, float]:
    """Let the team answer the input `prompts`, and write its runs as the output `runs`, with a `log` of all calls.

    At the rate `slips` it does one of three things that should not be imitated: it looks up or computes another thing,
    answers without a tool, or repeats a tool over and over. Metrics: `runs`, and `calls` of agents per run.
    """
    rows, calls = list[Row](), 0
    for place, row in enumerate(read_rows(context.input("prompts"), "prompts")):
        log = list(run_team(row, np.random.default_rng([context.seed, place]), slips))
        notes = json.loads(row["metadata"] or "{}") | {"log": [vars(call) for call in log]}
        rows.append(row | {"metadata": json.dumps(notes)})
        calls += len(log)
    write_rows(context.output("runs"), "prompts", rows)
    return {"runs": len(rows), "calls": calls / max(len(rows), 1)}


def run_team(row: Row, rng: np.random.Generator, slips: float = 0.0) -> Iterator[AgentCall]:
    """Yield the calls of the team's agents in their order; each agent is called by itself, with its own input."""
    question, chain = str(row["prompt"][-1]["content"]), ""
    fault = str(rng.choice(["other", "guess", "repeats"])) if rng.random() < slips else ""

    def ask(agent: str, text: str) -> AgentCall:
        nonlocal chain
        given = text if agent in TOOLS else show_state(question, chain)
        call = AgentCall(agent, given, _use_tool(row, agent, text) if agent in TOOLS else text)
        chain += write_call(call, TOOLS)
        return call

    steps = _plan(question, fault, rng)
    yield ask("plan", ", ".join(said for _, _, said in steps))
    if fault == "guess":
        yield ask("answer", str(rng.choice(["0", "zed", "bam"])))
        return
    known = ""
    for number, (tool, words, _) in enumerate(steps):
        for _ in range(4 if fault == "repeats" else 0):
            yield ask(tool, words.replace("{known}", known))
        result = ask(tool, words.replace("{known}", known))
        yield result
        known = result.output.split()[-1] if result.output else "nothing"
        yield ask("reflect", f"{known}, {'go on' if number + 1 < len(steps) else 'done'}")
    yield ask("answer", known)


def _plan(question: str, fault: str, rng: np.random.Generator) -> list[tuple[str, str, str]]:
    """Return tool, words and description of each step that a question takes."""
    words = question.removesuffix("?").split(" of ")
    if len(words) == 1:
        what, _, limit = words[0].partition(" below ")
        power = POWERS[what] + (fault == "other")
        return [("code", f"print(sum(n**{power} for n in range({limit})))", "compute")]
    *relations, town = words
    relations.reverse()
    if fault == "other":
        relations[-1] = str(rng.choice([one for one in RELATIONS if one != relations[-1]]))
    return [
        ("search", f"{'{known}' if number else town} {relation}", relation) for number, relation in enumerate(relations)
    ]


def _use_tool(row: Row, tool: str, words: str) -> str:
    return search(words, row) if tool == "search" else python(words)

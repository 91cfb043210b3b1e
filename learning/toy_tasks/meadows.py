"""Meadows to craft in, and rules that answer the questions of a graph from what a prompt shows."""

import json
import re
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_rows, write_rows
from learning.solvers.question_graph import prompt_dag, write_prompt
from learning.toy_tasks.crafting import ACTIONS, WAYS, Meadow, act, describe, read_meadow
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, is_in_split, make_row
from schemas.question_graph import Question, QuestionGraph, order_questions
from schemas.use import EnvUse

SIDE = 5
DRAWS = 60
"""Draws per row after which there are too few."""
MOST_ACTIONS = 25
"""Actions in which the rules reach a stone."""
UNKNOWN = "unknown"
NEEDS = re.compile(r"^(\w+) needs (.+)\.$", re.MULTILINE)
"""A line of a document that says what something needs."""
SEEN = re.compile(r"(left|right|up|down) (tree|stone|table|grass|edge)")


def meadows(
    *,
    size: Size,
    split: Split,
    seed: int = 0,
    trees: Annotated[int, Field(ge=1, le=6)] = 3,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` meadows of five by five cells with `trees`, two stones and a player on free ground.

    In each of them the rules of this module reach a stone in 25 actions. Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def draw(rows: dict[str, Row]) -> Row | None:
        cells = rng.permutation(SIDE * SIDE)[: trees + 3].tolist()
        marks = dict(zip(cells, ["@", *"T" * trees, *"SS"], strict=True))
        lines = ["".join(marks.get(y * SIDE + x, ".") for x in range(SIDE)) for y in range(SIDE)]
        notes = {"map": [line.replace("@", ".") for line in lines], "at": [cells[0] % SIDE, cells[0] // SIDE]}
        row = make_row("meadow", "\n".join(lines), None, notes)
        if not is_in_split(row["id"], split, test_share) or not _is_reached(read_meadow(row)):
            return None
        return row | {"prompt": [{"role": "user", "content": describe(read_meadow(row))}]}

    return draw_rows(draw, size, DRAWS * size, "meadows", split, "lower `size`")


def _is_reached(state: Meadow) -> bool:
    """Return whether the rules lead to a stone."""
    for _ in range(MOST_ACTIONS):
        seen = describe(state)
        known = {"needs": "wood, table, wood, pickaxe, stone"}
        for name in ("have", "next", "where"):
            known[name] = answer_by_rule(seen, name, known)
        state = act(state, answer_by_rule(seen, "act", known)) or state
        if state.stone:
            return True
    return False


def answer_by_rule(prompt: str, question: str, known: dict[str, str]) -> str:
    """Answer one of the questions `needs`, `have`, `next`, `where` and `act` from a prompt and the answers in it.

    What a prompt does not say is not known: without the document nothing is needed, without the other answers there is
    no next thing, no place and no action.
    """
    match question:
        case "needs":
            return _list_needs(dict(NEEDS.findall(prompt.casefold())), "stone")
        case "have":
            _, _, have = prompt.rpartition("have: ")
            table = "no" if "table none" in prompt else "yes"
            return f"{have.splitlines()[0]}, table {table}" if have else UNKNOWN
        case "next":
            return _choose_next(known.get("needs", UNKNOWN), known.get("have", UNKNOWN))
        case "where":
            thing = {"wood": "tree", "stone": "stone", "pickaxe": "table", "table": "grass"}.get(known.get("next", ""))
            place = re.search(rf"{thing} (-?\d+ -?\d+)", prompt)
            return f"{thing} {place[1]}" if place else (thing or UNKNOWN)
        case _:
            return _choose_action(prompt, known.get("next", UNKNOWN), known.get("where", UNKNOWN))


def _list_needs(needs: dict[str, str], thing: str) -> str:
    """Return in order what is to be made for a thing, the thing last; unknown without a document."""

    def list_for(name: str) -> list[str]:
        return [
            *(one for word in needs[name].split() if word in needs and word != name for one in list_for(word)),
            name,
        ]

    return ", ".join(list_for(thing)) if thing in needs else UNKNOWN


def _choose_next(needs: str, have: str) -> str:
    """Return the first thing that is needed and not there; what is made of wood uses it up."""
    owned = {name: amount not in ("0", "no") for name, amount in re.findall(r"(\w+) (\w+)", have)}
    if needs == UNKNOWN or not owned:
        return UNKNOWN
    order = needs.split(", ")
    done = [place for place, name in enumerate(order) if name in ("table", "pickaxe") and owned.get(name)]
    left = order[max(done, default=-1) + 1 :]
    return next((name for name in left if not (name == "wood" and owned["wood"])), UNKNOWN)


def _choose_action(prompt: str, wanted: str, where: str) -> str:
    around = dict(SEEN.findall(prompt))
    facing = re.search(r"facing: (\w+)", prompt)
    place = re.fullmatch(r"(\w+) (-?\d+) (-?\d+)", where)
    if facing is None or wanted == UNKNOWN or where == UNKNOWN:
        return UNKNOWN
    if wanted == "table":
        free = [way for way in WAYS if around.get(way) == "grass"]
        return "place_table" if around.get(facing[1]) == "grass" else f"move_{free[0]}" if free else UNKNOWN
    if place is None:
        return UNKNOWN
    dx, dy = int(place[2]), int(place[3])
    if wanted == "pickaxe" and max(abs(dx), abs(dy)) == 1:
        return "make_pickaxe"
    if abs(dx) + abs(dy) == 1:
        way = next(way for way, step in WAYS.items() if step == (dx, dy))
        return "do" if facing[1] == way and place[1] != "table" else f"move_{way}"
    sides = [("right" if dx > 0 else "left", abs(dx)), ("down" if dy > 0 else "up", abs(dy))]
    wanted_ways = [way for way, length in sorted(sides, key=lambda side: -side[1]) if length]
    free = [way for way in (*wanted_ways, *WAYS) if around.get(way) == "grass"]
    return f"move_{free[0]}" if free else UNKNOWN


class RuleAnswerer:
    """Answers the prompts of `prompt_dag` by rules that read the prompt alone."""

    def __init__(self, questions: dict[str, Question]) -> None:
        self.questions = questions
        self.asked: list[tuple[Row, str]] = []
        """Every prompt, with the answer to it."""

    def __call__(self, rows: list[Row]) -> list[str]:
        """Return an answer to each."""
        texts = [self.answer(str(row["prompt"][-1]["content"])) for row in rows]
        self.asked += zip(rows, texts, strict=True)
        return texts

    def answer(self, prompt: str) -> str:
        """Return the answer to the last part of a prompt; the parts before it are questions with their answers."""
        *parts, last = prompt.split("\n\n")
        names = {question.ask: name for name, question in self.questions.items()}
        known = {names[ask]: answer for ask, _, answer in (part.partition("\n") for part in parts) if ask in names}
        return answer_by_rule(prompt, names.get(last, ""), known)


def answer_graph(
    context: Any, *, env: EnvUse, questions: QuestionGraph, document: str, direct: bool = False
) -> dict[str, float]:
    """Play the input `prompts` by rules, and write the prompts of `prompt_dag` with their answers as output `lessons`.

    For a stage of kind `python`. Equal prompts are there once. `direct` adds lessons in which the action is asked for
    at once, as a graph of its question alone does; the answer is the graph's. Metrics: `lessons`, and `solved`, the
    share of problems in which a stone was collected.
    """
    rows, answerer = read_rows(context.input("prompts"), "prompts"), RuleAnswerer(questions)
    plans = prompt_dag(
        rows, answerer, env=env, questions=questions, actions=list(ACTIONS), noop="noop", document=document
    )
    lessons: dict[str, Row] = {}
    for row, text in [*answerer.asked, *(_ask_at_once(answerer.asked, questions, document) if direct else [])]:
        said = {"completion": [{"role": "assistant", "content": text}]}
        lessons.setdefault(str(row["prompt"][-1]["content"]), row | said)
    write_rows(context.output("lessons"), "chat", list(lessons.values()))
    short = sum(len(json.loads(plan)) < env.max_turns for plan in plans)
    return {"lessons": len(lessons), "solved": short / len(rows)}


def _ask_at_once(asked: list[tuple[Row, str]], questions: QuestionGraph, document: str) -> list[tuple[Row, str]]:
    """Return the prompts of the last question without those that it comes after, with the graph's answers."""
    last = order_questions(questions)[-1]
    alone, lessons = {last: Question(ask=questions[last].ask)}, list[tuple[Row, str]]()
    for row, text in asked:
        if row["id"].rpartition(".")[2] != last:
            continue
        shown = str(row["prompt"][-1]["content"]).removeprefix(f"{document.strip()}\n\n")
        content = write_prompt(alone, last, document, shown.partition("\n\n")[0], {})
        lessons.append((row | {"prompt": [*row["prompt"][:-1], {"role": "user", "content": content}]}, text))
    return lessons

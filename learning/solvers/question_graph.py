"""A solver that acts by asking a graph of questions about a document and what is seen; the last answer is the action.

(SPRING, Wu et al. 2023, arXiv:2305.15486.) Nothing is trained. Answers of a model are shown to it again, and compared
with the names of actions; they are never evaluated.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode
from schemas.question_graph import Question, QuestionGraph, order_questions
from schemas.use import EnvUse

Ask = Callable[[list[Row]], list[str]]
COMMENT = "#"
"""Between an action and what the model said in its place; `plans.replayed` ignores it with `comment: "#"`."""
LONGEST_ECHO = 40
"""Characters of an unknown action that the plan repeats."""


@dataclass
class Played:
    """An episode of a problem, and what the model sees of it."""

    row: Row
    episode: Episode
    seen: str
    plan: list[str]
    done: bool = False


def prompt_dag(
    rows: list[Row],
    ask: Ask,
    *,
    env: EnvUse,
    questions: QuestionGraph,
    actions: Annotated[list[str], Field(min_length=1)],
    noop: str,
    document: str = "",
    longest: Annotated[int, Field(ge=1)] = 400,
    seed: int = 0,
) -> list[str]:
    """Play `env` by answering `questions` once for every action, in the order of their dependencies (SPRING 2023).

    A prompt is the `document`, what is seen, the questions that it comes after with their answers, of at most `longest`
    characters, and the question; nothing else. The answer to the question that no other depends on is the action, if it
    is one of `actions` (letter case, white space and a final full stop aside), else `noop`. The text is the plan, a
    JSON list, in which what was said in place of an action follows `#`.
    """
    environment, order = build_environment(env, {}), order_questions(questions)
    games = [Played(row, environment.begin(row, seed), str(row["prompt"][-1]["content"]), []) for row in rows]
    for turn in range(env.max_turns):
        going = [game for game in games if not game.done]
        answers: list[dict[str, str]] = [{} for _ in going]
        for name in order:
            prompts = [
                _ask_about(game, turn, name, write_prompt(questions, name, document, game.seen, known))
                for game, known in zip(going, answers, strict=True)
            ]
            for known, text in zip(answers, ask(prompts) if prompts else [], strict=True):
                known[name] = text.strip()[:longest]
        for game, known in zip(going, answers, strict=True):
            _carry_out(game, known[order[-1]], actions, noop)
    return [json.dumps(game.plan) for game in games]


def write_prompt(
    questions: Mapping[str, Question], name: str, document: str, seen: str, known: Mapping[str, str]
) -> str:
    """Return what is shown with a question."""
    earlier = [f"{questions[one].ask}\n{known[one]}" for one in questions[name].after]
    return "\n\n".join([*([document.strip()] if document.strip() else []), seen, *earlier, questions[name].ask])


def _ask_about(game: Played, turn: int, name: str, text: str) -> Row:
    prompt = [*game.row["prompt"][:-1], {"role": "user", "content": text}]
    return game.row | {"id": f"{game.row['id']}.{turn}.{name}", "prompt": prompt}


def _carry_out(game: Played, said: str, actions: list[str], noop: str) -> None:
    """Carry out an action, or nothing in the place of an unknown one."""
    wanted = " ".join(said.split()).casefold().removesuffix(".")
    action = next((one for one in actions if one.casefold() == wanted), None)
    echo = " ".join(said.split())[:LONGEST_ECHO]
    game.plan.append(f"{noop} {COMMENT} {echo}".rstrip() if action is None else action)
    outcome = game.episode.step(noop if action is None else action)
    game.seen, game.done = outcome.observation, outcome.done

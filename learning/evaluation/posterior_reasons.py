"""Episodes in which an action comes first and the reason for it is written afterwards (A3T, Yang et al. 2024).

Slot search of synthesis: what is returned are single turns, each with the conversation before it as its prompt, and in
the metadata how their episode ended.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.questions import fill_template
from learning.data.rows import Row, read_metadata, read_rows
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import EnvironmentProtocol, Episode
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import Inner, TeacherFunction
from schemas.errors import StepError
from schemas.references import ChatRef
from schemas.use import EnvUse

Ask = Callable[[Sequence[Row]], list[list[AnswerSample]]]
Score = Callable[[list[Row], list[str]], list[float | None]]
AtLeast1 = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
FORM = "Thought: {reason}\nAction: {action}"
QUESTION = "why: {action}"


@dataclass
class Trial:
    """One episode: what the model sees, the same with bare actions, and the turns so far."""

    row: Row
    number: int
    """0 for the model's own episode of a problem, else that of the exploring one."""
    episode: Episode
    rng: np.random.Generator
    shown: list[Row]
    bare: list[Row]
    turns: list[tuple[list[Row], str]] = field(default_factory=list)
    """Each turn with the conversation before it."""
    earned: float = 0.0
    ended: bool = False

    def take(self, text: str, action: str, max_characters: int) -> None:
        """Carry out a turn, of which `action` is the part without a reason."""
        self.turns.append((self.shown, text))
        outcome = self.episode.step(text)
        self.earned += outcome.reward
        answer = {"role": "user", "content": outcome.observation}
        self.shown = [*self.shown, {"role": "assistant", "content": text}, answer]
        self.bare = [*self.bare, {"role": "assistant", "content": action}, answer]
        length = sum(len(str(message["content"])) for message in self.shown)
        self.ended = outcome.done or length > max_characters


def posterior_reasons(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    env: EnvUse,
    actions: TeacherFunction,
    reason: TeacherFunction,
    tries: AtLeast1 = 4,
    explore: Rate = 0.5,
    form: str = FORM,
    question: str = QUESTION,
    solved: float = 1.0,
    earlier: ChatRef | None = None,
    seed: int = 0,
    max_characters: AtLeast1 = 100_000,
) -> list[Row]:
    """Let the model play each problem once, and explore those that it fails with actions whose reason is written later.

    Each of the `tries` exploring episodes takes at the rate `explore` an action that the function `actions` draws; else
    the model acts. Only then `reason` is asked for the reason: its prompt has the episode so far, with bare actions,
    and ends with `question`, which names the action. The turn is `form`, with the reason before the action. Returned
    are all turns of the model's own episodes, and those of exploring ones that earn `solved`. Their metadata say how
    the episode ended (`outcome`: `solved` or `failed`) and whether it `explored`; the score is 1 or 0. Before them come
    the rows of `earlier`, such as those of the round before. A turn that the length limit cut ends an episode, as a
    conversation of more than `max_characters` does. Raise StepError for an environment that the recipe gives a context
    or another stage's output, and for a form without its two fields.
    """
    world = _build_world(env, form)

    def begin(row: Row, number: int) -> Trial:
        rng = np.random.default_rng([seed, number, *hashlib.sha256(str(row["id"]).encode()).digest()[:8]])
        return Trial(
            row, number, world.begin(row, int(rng.integers(2**31))), rng, list(row["prompt"]), list(row["prompt"])
        )

    def act_then_reason(trial: Trial) -> str | None:
        if trial.number == 0 or trial.rng.random() >= explore:
            return None
        action = _call(actions, trial.row | {"prompt": trial.bare}, trial.rng)
        asked = {"role": "user", "content": fill_template(question, {"action": action})}
        why = _call(reason, trial.row | {"prompt": [*trial.bare, asked]}, trial.rng)
        return fill_template(form, {"reason": why, "action": action})

    def play(trials: Sequence[Trial]) -> None:
        for turn in range(env.max_turns):
            _play_turn([trial for trial in trials if not trial.ended], turn, ask, act_then_reason, form, max_characters)

    own = [begin(row, 0) for row in problems]
    play(own)
    failed = [trial.row for trial in own if trial.earned < solved]
    explored = [begin(row, number + 1) for row in failed for number in range(tries)]
    play(explored)
    kept = [*own, *(trial for trial in explored if trial.earned >= solved)]
    return [*_read_earlier(earlier), *(row for trial in kept for row in _list_rows(trial, solved))]


def _build_world(env: EnvUse, form: str) -> EnvironmentProtocol:
    """Return the environment. Raise StepError for one that cannot be played here, and for a form without its fields."""
    if env.context is not None:
        raise StepError("posterior_reasons: `env.context` has no effect here, the model sees all turns; remove it")
    fill_template(form, {"reason": "", "action": ""})
    if form.find("{reason}") < 0 or form.find("{action}") < form.find("{reason}"):
        raise StepError("posterior_reasons: `form` must have {reason} and after it {action}")
    try:
        return build_environment(env, {})
    except KeyError as port:
        raise StepError(
            f"posterior_reasons: {port} refers to a stage's output; give the environment a folder"
        ) from None


def _play_turn(
    running: Sequence[Trial],
    turn: int,
    ask: Ask,
    act: Callable[[Trial], str | None],
    form: str,
    max_characters: int,
) -> None:
    """Play a turn of episodes side by side; `act` may take it in the model's place."""
    texts = [act(trial) for trial in running]
    asking = [trial for trial, text in zip(running, texts, strict=True) if text is None]
    rows = [trial.row | {"id": f"{trial.row['id']}~{trial.number}.{turn}", "prompt": trial.shown} for trial in asking]
    samples = iter([group[0] for group in ask(rows)] if rows else [])
    for trial, given in zip(running, texts, strict=True):
        sample = AnswerSample(given, "stop") if given is not None else next(samples)
        if sample.finish == "stop":
            trial.take(sample.text, find_action(sample.text, form), max_characters)
        else:
            trial.ended = True


def find_action(text: str, form: str) -> str:
    """Return the action of a turn: what follows the last text that stands before it in the form, or the whole turn."""
    before = form.partition("{action}")[0].rpartition("}")[2]
    return text.rpartition(before)[2].strip() if before else text.strip()


def _call(function: TeacherFunction, row: Row, rng: np.random.Generator) -> str:
    """Return what a teacher writes. Raise StepError for one that asks a server."""
    guide: Inner = function
    text = guide.bound(row, rng)
    if not isinstance(text, str):
        raise StepError("posterior_reasons: `actions` and `reason` must write texts; a server cannot be asked here")
    return text.strip()


def _read_earlier(folder: ChatRef | None) -> list[Row]:
    """Return the rows of a chat artifact as samples; their ids say that they are of an earlier round."""
    rows = [] if folder is None else read_rows(Path(str(folder)), "chat")
    return [
        {**row, "id": f"<{row['id']}", "text": row["completion"][-1]["content"], "finished": True, "score": 0.0}
        for row in rows
    ]


def _list_rows(trial: Trial, solved: float) -> list[Row]:
    """Return the turns of an episode."""
    outcome = "solved" if trial.earned >= solved else "failed"
    about = json.dumps({**read_metadata(trial.row), "outcome": outcome, "explored": trial.number > 0})
    more = {"finished": True, "score": float(outcome == "solved"), "metadata": about}
    return [
        trial.row | {"id": f"{trial.row['id']}~{trial.number}.{number}", "prompt": prompt, "text": text} | more
        for number, (prompt, text) in enumerate(trial.turns)
    ]

"""Environment `interview`: the partner knows facts that the model does not see, and tells those that it is asked for.

A problem's metadata has them: `{"facts": {"fever": "yes", "cough": "no"}, "shown": ["fever"]}`. Facts that are `shown`
stand in the prompt already. `worth` may say how much each hidden fact is worth: `{"cough": 0.4}`.
"""

import re
from typing import Annotated

from pydantic import Field, ValidationError

from learning.data.rows import Row, read_metadata
from learning.environments.protocol import Outcome
from schemas.base import Schema
from schemas.errors import StepError

WORD = re.compile(r"\w+")


class Environment:
    """Ask a partner for facts, and conclude: a patient, a customer, a user with a profile.

    A turn that names facts is answered with the first `per_turn` of them, as `reply` has it; any other turn with
    `unknown`. A fact that the model did not know earns `gain` times its worth, or an equal share of `gain` where the
    row has no `worth`; every turn costs `cost`. A turn that begins with `final` ends the episode and earns `right` if
    the rest of it is the row's answer, in any case. Without a `final` (null) the episode lasts `rounds` turns. Turns
    are of the kind `question` or `conclusion`.
    """

    def __init__(
        self,
        *,
        final: str | None = "answer:",
        rounds: Annotated[int, Field(ge=1)] | None = None,
        right: float = 1.0,
        gain: float = 0.0,
        cost: float = 0.0,
        per_turn: Annotated[int, Field(ge=1)] = 1,
        reply: str = "{fact}: {value}",
        unknown: str = "?",
    ) -> None:
        if not final and rounds is None:
            raise StepError("env interview: nothing ends an episode; give `final` or `rounds`")
        self.final, self.rounds, self.right, self.gain, self.cost = final, rounds, right, gain, cost
        self.per_turn, self.reply, self.unknown = per_turn, reply, unknown

    def begin(self, row: Row, seed: int) -> "Interview":
        """Return an episode of a row. Raise StepError for a row without facts."""
        return Interview(self, row, read_partner(row))


class Partner(Schema):
    """What the metadata of a row say about the partner."""

    facts: dict[str, str] = Field(min_length=1)
    shown: list[str] = []
    worth: dict[str, float] | None = None


class Interview:
    """One episode: which facts are known, and how many turns there were."""

    def __init__(self, world: Environment, row: Row, partner: Partner) -> None:
        self.world, self.partner = world, partner
        self.answer = " ".join(str(row.get("answer") or "").casefold().split())
        self.known, self.turns = list(partner.shown), 0
        hidden = [fact for fact in partner.facts if fact not in partner.shown]
        self.worth = partner.worth or dict.fromkeys(hidden, 1 / max(1, len(hidden)))

    def step(self, action: str) -> Outcome:
        """Answer a turn, or end the episode with its conclusion."""
        world, said = self.world, action.strip()
        self.turns += 1
        over = world.rounds is not None and self.turns >= world.rounds
        if world.final and said.startswith(world.final):
            concluded = " ".join(said.removeprefix(world.final).casefold().split())
            earned = world.right * (concluded == self.answer) - world.cost
            return Outcome(done=True, reward=earned, kind="conclusion")
        asked = [fact for fact in dict.fromkeys(WORD.findall(said)) if fact in self.partner.facts][: world.per_turn]
        learnt = [fact for fact in asked if fact not in self.known]
        self.known += learnt
        answers = ", ".join(world.reply.format(fact=fact, value=self.partner.facts[fact]) for fact in asked)
        earned = world.gain * sum(self.worth.get(fact, 0.0) for fact in learnt) - world.cost
        return Outcome(answers or world.unknown, done=over, reward=earned, ok=bool(said), kind="question")

    @property
    def state_name(self) -> str:
        """Return the facts that are known, whatever their order."""
        return " ".join(sorted(self.known))

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"known": list(self.known), "turns": self.turns}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.known, self.turns = list(saved["known"]), saved["turns"]


def read_partner(row: Row) -> Partner:
    """Return what a row's metadata say about the partner. Raise StepError if they have no facts that can be asked."""
    metadata = read_metadata(row)
    try:
        partner = Partner.model_validate({key: metadata[key] for key in Partner.model_fields if key in metadata})
    except ValidationError as error:
        raise StepError(
            f"env interview: row {row.get('id')}: its metadata need `facts`, a map of names to texts such as "
            f'{{"fever": "yes"}}, perhaps with `shown` and `worth`: {error}'
        ) from error
    if strange := [name for name in (*partner.shown, *(partner.worth or {})) if name not in partner.facts]:
        raise StepError(f"env interview: row {row.get('id')}: `{strange[0]}` is not one of its `facts`")
    if unspeakable := [name for name in partner.facts if not WORD.fullmatch(name)]:
        raise StepError(
            f"env interview: row {row.get('id')}: the fact `{unspeakable[0]}` is not one word, so that no turn names it"
        )
    return partner

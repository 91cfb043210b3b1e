"""Environment `persuasion`: a partner whom facts or stories move says yes if it has heard such an appeal."""

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.persuasion import APPEALS, ASK, BORED, MOVED, NO, TURNS, UNMOVED, YES, find_kind
from schemas.errors import StepError


class Environment:
    """Persuade the partner of a problem in four turns; the last one earns 1 if it has said yes."""

    def begin(self, row: Row, seed: int) -> "Talk":
        """Return an episode of a row. Raise StepError if its answer is no kind of partner."""
        if row.get("answer") not in APPEALS:
            raise StepError(f"env persuasion: row {row.get('id')}: its answer is not one of {', '.join(APPEALS)}")
        return Talk(str(row["answer"]))


class Talk:
    """One episode: whether the partner is moved, and whether it has said yes."""

    def __init__(self, kind: str) -> None:
        self.kind, self.moved, self.gives, self.turns = kind, False, False, 0

    def step(self, action: str) -> Outcome:
        """Return what the partner says to a turn."""
        self.turns += 1
        if self.turns == TURNS:
            return Outcome(done=True, reward=float(self.gives))
        appeal, said = find_kind(action), " ".join(action.split())
        if appeal is not None:
            self.moved |= appeal == self.kind
            return Outcome(MOVED if appeal == self.kind else BORED[appeal])
        if said == ASK:
            self.gives |= self.moved
            return Outcome(YES if self.moved else NO)
        return Outcome(UNMOVED, ok=bool(said))

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"moved": self.moved, "gives": self.gives, "turns": self.turns}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.moved, self.gives, self.turns = saved["moved"], saved["gives"], saved["turns"]

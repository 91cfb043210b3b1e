"""Environment `language_games`: a maze, questions about a thing, and Wordle, whichever the problem is of."""

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.language_games import (
    GOAL,
    MOVES,
    PROPERTIES,
    THINGS,
    WORDS,
    Place,
    mark,
    name_place,
    spell,
    step_from,
)
from learning.toy_tasks.rows import read_metadata


class Environment:
    """Play the game of a problem: the turn that wins earns `win` and ends it, every other costs `cost`.

    In the maze a turn is a direction, answered with where one is then. Among things a turn is a property (`alive?`),
    answered with yes or no, or a thing, which wins if it is the right one. In Wordle it is a word, letter by letter,
    answered with a mark for each letter. A turn that is none of these costs twice as much.
    """

    def __init__(self, *, win: float = 1.0, cost: float = 0.0) -> None:
        self.win, self.cost = win, cost

    def begin(self, row: Row, seed: int) -> "Playing":
        """Return an episode of a row. Raise StepError for a row of another task."""
        game, start = read_metadata(row, "language_games", lambda given: (given["game"], given.get("start", [0, 0])))
        if game == "maze":
            return Maze(self, (int(start[0]), int(start[1])))
        secret = str(row["answer"])
        return Questions(self, secret) if game == "questions" else Wordle(self, secret)


class Playing:
    """One game."""

    def __init__(self, world: Environment) -> None:
        self.win, self.cost = world.win, world.cost

    def answer(self, action: str) -> str | None:
        """Return the reply to a turn, empty if it wins; None if it is no turn of the game."""
        raise NotImplementedError

    def save(self) -> Row:
        """Return the state as JSON: nothing where the answers do not depend on earlier turns."""
        return {}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""

    def step(self, action: str) -> Outcome:
        """Carry out a turn."""
        reply = self.answer(" ".join(action.split()))
        if reply is None:
            return Outcome("what?", reward=-2 * self.cost, ok=False)
        return Outcome(reply, done=not reply, reward=-self.cost if reply else self.win)


class Maze(Playing):
    """A walk to the goal."""

    def __init__(self, world: Environment, place: Place) -> None:
        super().__init__(world)
        self.place = place

    def answer(self, action: str) -> str | None:
        """Walk in a direction."""
        if action not in MOVES:
            return None
        self.place = step_from(self.place, action)
        return "" if self.place == GOAL else name_place(self.place)

    def save(self) -> Row:
        """Return where one is."""
        return {"place": list(self.place)}

    def restore(self, saved: Row) -> None:
        """Continue from there."""
        self.place = (int(saved["place"][0]), int(saved["place"][1]))


class Questions(Playing):
    """A search for a thing."""

    def __init__(self, world: Environment, secret: str) -> None:
        super().__init__(world)
        self.secret = secret

    def answer(self, action: str) -> str | None:
        """Answer a question, or say whether the thing was found."""
        if action in THINGS:
            return "" if action == self.secret else "no"
        about = action.removesuffix("?").strip()
        if about not in PROPERTIES or not action.endswith("?"):
            return None
        return "yes" if about in THINGS[self.secret].split() else "no"


class Wordle(Playing):
    """A search for a word."""

    def __init__(self, world: Environment, secret: str) -> None:
        super().__init__(world)
        self.secret = spell(secret)

    def answer(self, action: str) -> str | None:
        """Mark the letters of a guess."""
        if action.replace(" ", "") not in WORDS or action != spell(action.replace(" ", "")):
            return None
        return "" if action == self.secret else mark(self.secret, action)

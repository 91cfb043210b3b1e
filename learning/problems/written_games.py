"""Text games that were written as JSON, as problems."""

from pathlib import Path

from learning.data.rows import Row, read_rows
from learning.text_game.rows import make_row
from learning.text_game.written import compile_game, walk_through
from schemas.errors import StepError
from schemas.references import ChatRef


def written_games(*, data: ChatRef, instruction: str = "") -> list[Row]:
    """Return the games that the completions of `data` describe, as problems of the environment `text_game`.

    A description that means the same game as an earlier one is left out. `instruction` begins every prompt. Raise
    StepError for one that does not compile or cannot be solved: the filter `playable` drops these before.
    """
    made = dict[str, Row]()
    for row in read_rows(Path(data), "chat"):
        try:
            world, state = compile_game(str(row["completion"][-1]["content"]))
            plan = walk_through(world, state)
        except ValueError as error:
            raise StepError(
                f"written_games: row {row['id']}: {error}; drop such rows by `filters: [playable]` of a curate stage"
            ) from error
        game = make_row(world, state, len(plan), instruction)
        made.setdefault(game["id"], game)
    return list(made.values())

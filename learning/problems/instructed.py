"""Problems that ask another generator's questions in another way."""

import json

from learning.data.rows import Row, read_metadata
from learning.lookup import ProblemsFunction


def instructed(
    *,
    of: ProblemsFunction,
    before: str = "",
    after: str = "",
    family: str | None = None,
    system: str | None = None,
    without: list[str] = [],  # noqa: B006 (never changed; a recipe reads it)
) -> list[Row]:
    """Return the problems `of` with texts `before` and `after` the last message of each prompt, under ids of their own.

    `system` is the system message (null: that of the problem, if it has one), `family` replaces the family (null: it
    stays), and the entries `without` are left out of the metadata, for example documents that this way of asking does
    not allow to search.
    """
    made = [_instruct(row, before, after, family, without) for row in of()]
    return made if system is None else [give_system_message(row, system) for row in made]


def give_system_message(row: Row, text: str) -> Row:
    """Return a problem with a system message, under an id of its own."""
    said = [message for message in row["prompt"] if message["role"] != "system"]
    return row | {"id": f"{row['id']}:{text}", "prompt": [{"role": "system", "content": text}, *said]}


def _instruct(row: Row, before: str, after: str, family: str | None, without: list[str]) -> Row:
    *others, last = row["prompt"]
    known = {name: value for name, value in read_metadata(row).items() if name not in without}
    return row | {
        "id": f"{row['id']}:{before}{after}",
        "prompt": [*others, last | {"content": f"{before}{last['content']}{after}"}],
        "family": row["family"] if family is None else family,
        "metadata": json.dumps(known),
    }

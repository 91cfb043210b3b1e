"""Questions about the pages of a small site, an agent that researches them, and a reader of pages.

`data/servers/pages` serves a page for each fact of `make_atlas(15, 0)`: `p7` has the title `bam river`, and one of its
paragraphs is `bam river zed`.
"""

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.atlas import RELATIONS, Document, list_texts, make_atlas
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, choose, is_in_split, make_row
from schemas.errors import StepError

TOWNS = 15
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def site_questions(
    *,
    world: Annotated[int, Field(ge=0, le=69)] = 0,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.25,
) -> list[Row]:
    """Return `size` questions that one page answers: `river of bam?`. The metadata have all facts as documents.

    Another `world` has other names on the same pages: the server's `--world`.
    """
    documents = rename(make_atlas(TOWNS, 0), world)
    about = {"documents": list_texts(documents)}
    rows = [make_row("pages", f"{kind} of {town}?", value, about) for town, kind, value in documents]
    own = [row for row in rows if is_in_split(row["id"], split, test_share)]
    return choose("site_questions", split, own, size, seed)


def rename(documents: Iterable[Document], world: int) -> list[Document]:
    """Return documents with the letters of towns and values moved on by `world` places, as the server does."""
    moved = "".join(
        letters[world % len(letters) :] + letters[: world % len(letters)] for letters in (CONSONANTS, VOWELS)
    )
    table = str.maketrans(CONSONANTS + VOWELS, moved)
    return [(town.translate(table), kind, value.translate(table)) for town, kind, value in documents]


def site_researcher(
    row: Row,
    rng: np.random.Generator,
    *,
    read: bool = True,
    error_rate: Rate = 0.0,
    answer: str = "<answer>{answer}</answer>",
) -> str:
    """Write the next turn of a research: a search, `read: ADDRESS bam river` of the first page found, the answer.

    Without `read` the search itself shows documents. The answer is the last word that was shown. At `error_rate` the
    search is for another relation. Raise StepError for other questions.
    """
    messages = row["prompt"]
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    kind, of, town = str(messages[first - 1]["content"]).removesuffix("?").partition(" of ")
    if not of or kind not in RELATIONS:
        raise StepError(f"teacher site_researcher: row {row['id']} is no question of `site_questions`")
    if first == len(messages):
        return f"search: {town} {RELATIONS[int(rng.integers(len(RELATIONS)))] if rng.random() < error_rate else kind}"
    shown, turns = str(messages[-1]["content"]), (len(messages) - first) // 2
    if read and turns == 1:
        return f"read: {shown.split()[0]} {town} {kind}"
    return answer.replace("{answer}", shown.split()[-1])


def line_reader(row: Row, rng: np.random.Generator, *, least: Annotated[int, Field(ge=1)] = 1) -> str:
    """Note the lines of a segment that have all words of the question, and ask for more if there are less than `least`.

    The prompt is that of the environment `site`.
    """
    question, _, rest = str(row["prompt"][-1]["content"]).removeprefix("Question: ").partition("\n")
    segment, words = rest.partition("Page:\n")[2], set(question.casefold().split())
    notes = [line for line in segment.splitlines() if words <= set(line.casefold().rstrip(".").split())]
    return "\n".join(notes if len(notes) >= least else [*notes, "more"])

"""Briefs of websites of two pages, `bakery: bread, cake | oven`, and an author of every taste.

The first page shows the name and its words and leads to the second, `about.html`, which shows the last word and leads
back (`learning.rewards.websites`).
"""

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row, read_metadata

PLACES = ("bakery", "garage", "school", "museum", "farm", "hotel", "choir", "garden")
WORDS = (
    *("bread", "cake", "oven", "cars", "tools", "wheels", "books", "maths"),
    *("art", "tours", "cows", "milk", "rooms", "views", "songs", "trees"),
)
GRAYS = ("#000", "#555", "#999", "#fff")
INDENTS = (0, 2, 5)
MAX_DRAWS = 60
"""Briefs drawn per row after which there are too few."""


def site_briefs(*, size: Size, seed: int = 0, split: Split, test_share: TestShare = 0.2) -> list[Row]:
    """Generate `size` briefs of websites of two pages for the train or test split; what they ask for is `pages`."""
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        place = str(rng.choice(PLACES))
        first, second, last = (str(word) for word in rng.permutation(WORDS)[:3])
        pages = {
            "index.html": {"texts": [place, first, second], "links": ["about.html"]},
            "about.html": {"texts": [last], "links": ["index.html"]},
        }
        row = make_row("site_briefs", f"{place}: {first}, {second} | {last}", None, {"pages": pages})
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, MAX_DRAWS * size, "site_briefs", split, "lower `size`")


def site_author(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the pages of a brief in random grays and indents, with a fault at `error_rate`.

    A fault is a tag that stays open, a link to a page that is not there, a file too many, or a word left out. Raise
    StepError for a row of other problems.
    """
    pages = read_metadata(row, "site_briefs", lambda about: about["pages"])
    fault = int(rng.integers(4)) if rng.random() < error_rate else None
    ink, ground = (str(gray) for gray in rng.permutation(GRAYS)[:2])
    texts = []
    for name, brief in pages.items():
        words = brief["texts"][: -1 if fault == 3 and name == "index.html" else None]
        parts = [_write("h1" if not i and name == "index.html" else "p", word, rng) for i, word in enumerate(words)]
        if fault == 0 and name == "index.html":
            parts[0] = parts[0][: -len("</h1>")]
        target = "more.html" if fault == 1 and name == "index.html" else brief["links"][0]
        body = "".join([*parts, f'<a href="{target}">{target.partition(".")[0]}</a>'])
        texts.append(f'<!-- {name} --><body style="color:{ink};background:{ground}">{body}</body>')
    if fault == 2:
        texts.append("<!-- more.html --><body></body>")
    return "".join(texts)


def _write(tag: str, word: str, rng: np.random.Generator) -> str:
    indent = INDENTS[int(rng.integers(len(INDENTS)))]
    style = f' style="margin-left:{indent}em"' if indent else ""
    return f"<{tag}{style}>{word}</{tag}>"

"""Questions that only a server can answer: stocks and prices of shops; and a teacher who calls its tools."""

import hashlib
import json

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, check_size, choose, hash_text, is_in_split, make_row

SHOPS = range(1, 10)
ITEMS = (
    *("apples", "bread", "cheese", "dates", "eggs", "figs", "grapes", "honey", "jam", "kale", "lemons", "melons"),
    *("nuts", "oats", "pears", "quinces", "rice", "salt", "tea", "udon", "vinegar", "wine", "yeast", "zest"),
)
TOOLS = {"stock": "how many {item} has shop {shop}?", "price": "what do {item} cost in shop {shop}?"}
"""Tool to the question that it answers."""


def shop_questions(*, split: Split, size: Size, seed: int = 0, test_share: TestShare = 0.3) -> list[Row]:
    """Generate questions about `stock` and `price` of an item in a shop, which `data/servers/stock` answers.

    The metadata hold `tool`, `shop` and `item`. Raise StepError if there are fewer than `size`.
    """
    cases = [(tool, shop, item) for tool in TOOLS for shop in SHOPS for item in ITEMS]
    own = [case for case in cases if is_in_split(hash_text(" ".join(map(str, case))), split, test_share)]
    check_size("shop_questions", split, len(own), size)
    return [_make_row(*case) for case in choose("shop_questions", split, own, size, seed)]


def shop_assistant(row: Row, rng: np.random.Generator, *, right: Rate = 1.0) -> str:
    """Make the right call with probability `right`, otherwise one with a random tool and item; repeat its result."""
    *_, last = row["prompt"]
    if len(row["prompt"]) > 1:
        return str(last["content"]).removeprefix("<tool_response>").removesuffix("</tool_response>").strip()
    case = json.loads(row["metadata"])
    if rng.random() >= right:
        tools = list(TOOLS)
        case |= {
            "tool": tools[int(rng.integers(len(tools)))],
            "item": ITEMS[int(rng.integers(len(ITEMS)))],
        }
    call = {"name": case["tool"], "arguments": {"shop": case["shop"], "item": case["item"]}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def _make_row(tool: str, shop: int, item: str) -> Row:
    text = TOOLS[tool].format(item=item, shop=shop)
    digest = hashlib.sha256(f"{tool} {shop} {item}".encode()).hexdigest()  # as the server draws it
    return make_row("shop_questions", text, str(10 + int(digest, 16) % 90), {"tool": tool, "shop": shop, "item": item})

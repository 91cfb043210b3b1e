"""Things that are crafted from others, as text: a goal, recipes, and a bag (a small TextCraft).

    make: ladder            the goal (first message only)
    plank: log              recipes: what a thing is crafted from
    ladder: plank rope
    have: nothing           the bag

`get log` puts a thing into the bag that no recipe makes; `craft plank` takes what its recipe needs out of it and puts
the thing in. What is not possible changes nothing, as a thought does: a turn that begins with `wait`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.evaluation.revisions import JUDGE, write_judgement
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, read_metadata
from schemas.errors import StepError

NAMES = ("log", "ore", "clay", "reed", "wool", "sand", "rope", "plank", "brick", "rod", "lamp", "bell", "boat", "door")
WAIT, GET, CRAFT = "wait", "get", "craft"
REFUSED = "?"
"""First line of the answer to an action that is not possible."""
GOOD, BAD = "good", "bad"
MAX_DRAWS = 400
"""Problems drawn per problem after which there are too few."""

Recipes = Mapping[str, list[str]]
Depths = Annotated[list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1)]
Others = Annotated[int, Field(ge=0, le=3)]
Bag = tuple[tuple[str, int], ...]
"""Things and how many of each there are, by name."""


def act(recipes: Recipes, bag: Bag, action: str) -> Bag | None:
    """Return the bag after an action; None if it is not possible."""
    verb, _, thing = action.strip().partition(" ")
    held = Counter(dict(bag))
    if verb == GET and thing in list_bases(recipes):
        held[thing] += 1
    elif verb == CRAFT and thing in recipes and not Counter(recipes[thing]) - held:
        held = held - Counter(recipes[thing]) + Counter([thing])
    else:
        return None
    return tuple(sorted(held.items()))


def list_bases(recipes: Recipes) -> list[str]:
    """Return the things that recipes need and none makes."""
    return sorted({part for parts in recipes.values() for part in parts} - recipes.keys())


def show_bag(bag: Bag) -> str:
    """Return the bag as text."""
    return f"have: {' '.join(thing for thing, count in bag for _ in range(count)) or 'nothing'}"


def plan(recipes: Recipes, bag: Bag, goal: str) -> list[str]:
    """Return the actions of a shortest way to have the goal: what is in the bag is used, the rest is made."""
    held, actions = Counter(dict(bag)), list[str]()

    def make(thing: str) -> None:
        for part in recipes.get(thing, ()):
            if held[part]:
                held[part] -= 1
            else:
                make(part)
        actions.append(f"{CRAFT if thing in recipes else GET} {thing}")

    if not held[goal]:
        make(goal)
    return actions


def list_actions(recipes: Recipes) -> list[str]:
    """Return the actions that there are, possible or not."""
    return [*(f"{GET} {thing}" for thing in list_bases(recipes)), *(f"{CRAFT} {thing}" for thing in recipes)]


def read_craft(row: Row) -> tuple[Recipes, str]:
    """Return the recipes and the goal of a row. Raise StepError if it has none, or one that cannot be reached."""
    recipes, goal = _read(read_metadata(row, "crafts", lambda about: json.dumps([about["recipes"], about["goal"]])))
    if goal not in recipes:
        raise StepError(f"row {row.get('id')}: no recipe makes its goal {goal!r}; name one of: {', '.join(recipes)}")
    return recipes, goal


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Recipes, str]:
    """Return recipes and goal. Raise StepError for other things than lists of names, and for recipes in a circle."""
    recipes, goal = json.loads(text)
    parts = list(recipes.values()) if isinstance(recipes, dict) else [None]
    if not all(isinstance(one, list) and one and all(isinstance(name, str) for name in one) for one in parts):
        raise StepError(f'crafts: recipes are a map such as {{"plank": ["log"]}}, not {json.dumps(recipes)[:80]}')
    left = dict(recipes)
    while ready := [thing for thing, needs in left.items() if not left.keys() & set(needs)]:
        left = {thing: needs for thing, needs in left.items() if thing not in ready}
    if left:
        raise StepError(f"crafts: these recipes need each other: {', '.join(left)}; remove one of them")
    return recipes, goal


def crafts(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    depths: Depths = [2, 3, 4],  # noqa: B006
    others: Others = 1,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` goals with recipes of their own for the train or test split, cycling through `depths`.

    `depths` is the difficulty: how many things are crafted on the way, each from the one before and perhaps another
    one; also in the row's family (`craft3`). `others` recipes are of no use. Raise StepError if there are too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        depth = depths[len(rows) % len(depths)]
        row = make_craft_row(*draw_recipes(rng, depth, others), f"craft{depth}")
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, MAX_DRAWS * size, "crafts", split, "lower `size`, or change `depths`")


def draw_recipes(rng: np.random.Generator, depth: int, others: int) -> tuple[Recipes, str]:
    """Return recipes of a chain of so many things with further ones of no use, in random order, and the last thing."""
    names = [str(name) for name in rng.permutation(NAMES)]
    bases, chain, useless = names[:2], names[2 : 2 + depth], names[2 + depth : 2 + depth + others]
    recipes: dict[str, list[str]] = {}
    before = bases[0]
    for thing in chain:
        recipes[thing] = [before, bases[1]] if rng.random() < 0.4 else [before]
        before = thing
    for thing in useless:
        recipes[thing] = [names[int(rng.integers(2 + depth))]]
    order = [list(recipes)[int(place)] for place in rng.permutation(len(recipes))]
    return {thing: recipes[thing] for thing in order}, chain[-1]


def make_craft_row(recipes: Recipes, goal: str, family: str) -> Row:
    """Return the row of a goal; its id is the hash of its text."""
    lines = [f"{thing}: {' '.join(parts)}" for thing, parts in recipes.items()]
    text = "\n".join([f"make: {goal}", *lines, show_bag(())])
    return {
        "id": hash_text(f"crafts\n{text}"),
        "prompt": [{"role": "user", "content": text}],
        "answer": goal,
        "family": family,
        "metadata": json.dumps({"recipes": recipes, "goal": goal, "steps": len(plan(recipes, (), goal))}),
    }


def crafter(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next action of a shortest way to the goal, or sometimes another action, possible or not.

    The prompt must show all turns so far. Raise StepError for a row without a goal, or one that is reached.
    """
    recipes, goal = read_craft(row)
    bag: Bag = ()
    for message in row["prompt"]:
        if message["role"] == "assistant":
            bag = act(recipes, bag, str(message["content"])) or bag
    actions = plan(recipes, bag, goal)
    if not actions:
        raise StepError(f"teacher crafter: row {row['id']}: its goal was reached by the turns in the prompt")
    return draw_action(recipes, actions[0], error_rate, rng)


def draw_action(recipes: Recipes, best: str, error_rate: float, rng: np.random.Generator) -> str:
    """Return the action that is best, or at the rate another one."""
    others = [action for action in list_actions(recipes) if action != best]
    return others[int(rng.integers(len(others)))] if others and rng.random() < error_rate else best


def craft_verdicts(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    depths: Depths = [2, 3, 4],  # noqa: B006
    others: Others = 1,
    errors: Rate = 0.4,
    judge: str = JUDGE,
) -> list[Row]:
    """Generate `size` questions whether the last action of an episode was good; the answer is `good` or `bad`.

    Episodes err at the rate `errors`; an action is good if the way to the goal is shorter after it. `judge` is the text
    of the question, as of the search `state_revisions`.
    """
    rng, rows = np.random.default_rng(seed), list[Row]()
    for task in crafts(size=size, seed=seed, split=split, depths=depths, others=others):
        recipes, goal = read_craft(task)
        count = 1 + int(rng.integers(2 * len(plan(recipes, (), goal))))
        turns, verdict = _play(recipes, goal, count, errors, rng)
        text = write_judgement(judge, task["prompt"][0]["content"], turns)
        question = {"id": hash_text(f"craft_verdicts\n{text}"), "prompt": [{"role": "user", "content": text}]}
        rows.append(task | question | {"answer": verdict, "family": "craft_verdicts"})
    return rows


def _play(
    recipes: Recipes, goal: str, count: int, errors: float, rng: np.random.Generator
) -> tuple[list[tuple[str, str]], str]:
    """Return up to so many turns of an episode that errs at a rate, each with its answer, and what the last one was."""
    bag: Bag = ()
    turns, verdict = list[tuple[str, str]](), GOOD
    while len(turns) < count and (left := plan(recipes, bag, goal)):
        action = draw_action(recipes, left[0], errors, rng)
        after = act(recipes, bag, action)
        bag = after or bag
        now = plan(recipes, bag, goal)
        verdict = GOOD if len(now) < len(left) else BAD
        turns.append((action, answer_action(after, bag) if now else ""))
    return turns, verdict


def answer_action(after: Bag | None, bag: Bag) -> str:
    """Return the answer to an action after which the bag is `after`; None: it was not possible, and the bag is this."""
    return f"{REFUSED}\n{show_bag(bag)}" if after is None else show_bag(after)

"""Three games of words: a maze of 4 by 4 cells, questions about one of twelve things, and Wordle with three letters.

Their rules are those of LMRL-Gym in small (Abdulhaim et al. 2023); `learning.toy_tasks.environments.language_games`
plays them. Positions are (row, column), north is row − 1.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

Game = Literal["maze", "questions", "wordle"]
Place = tuple[int, int]
SIDE, GOAL = 4, (0, 3)
MOVES: dict[str, Place] = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
WALLS: frozenset[frozenset[Place]] = frozenset(
    frozenset(pair)
    for pair in (
        *(((0, 2), (0, 3)), ((0, 1), (1, 1)), ((1, 0), (1, 1)), ((1, 2), (2, 2)), ((2, 0), (3, 0))),
        *(((2, 2), (2, 3)), ((3, 1), (3, 2)), ((0, 0), (0, 1))),
    )
)
"""Pairs of neighbours between which there is no way; from every cell the goal can be reached."""
PROPERTIES = ("alive", "big", "flies", "swims", "eaten", "wooden")
THINGS: dict[str, str] = {
    "cow": "alive big eaten",
    "eagle": "alive big flies",
    "duck": "alive flies swims eaten",
    "shark": "alive big swims",
    "trout": "alive swims eaten",
    "wasp": "alive flies",
    "oak": "alive big wooden",
    "boat": "big swims wooden",
    "plane": "big flies",
    "spoon": "wooden",
    "bread": "eaten",
    "tower": "big",
}
"""Things with what is true of them."""
WORDS = (
    *("ape", "ash", "bay", "bed", "bun", "cab", "cap", "den", "dip", "elm", "fan", "fez"),
    *("gum", "hat", "hen", "ivy", "jam", "keg", "lid", "map", "nut", "oil", "pen", "rye"),
)
CANDIDATES = 6
"""Things, and words, that a problem names as possible."""


def language_games(
    *,
    split: Split,
    size: Size,
    seed: int = 0,
    games: Annotated[list[Game], Field(min_length=1)] = ["maze", "questions", "wordle"],  # noqa: B006 — pydantic copies it
    test_share: TestShare = 0.25,
) -> list[Row]:
    """Generate `size` problems of each game: where a maze begins, or which things or words are possible.

    They are split by the text of the problem: where the maze begins, or what is possible. A maze has at most as many
    problems as it has cells.
    """
    rows: list[Row] = []
    rng = np.random.default_rng(seed)
    for game in games:
        possible = [
            row
            for row in (
                [_make_maze(place) for place in _list_cells() if place != GOAL]
                if game == "maze"
                else [_draw_secret(game, rng) for _ in range(60 * size)]
            )
            if is_in_split(hash_text(str(row["prompt"][0]["content"])), split, test_share)
        ]
        if game == "maze":
            rows += [possible[int(i)] for i in rng.permutation(len(possible))[:size]]
            continue
        left = iter(possible)
        rows += draw_rows(lambda _, left=left: next(left, None), size, len(possible), game, split, "lower `size`")
    return rows


def game_player(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Play a turn well, or at the rate `error_rate` any turn of the game: who plays so seldom wins soon."""
    game = read_metadata(row)
    said = [str(m["content"]) for m in row["prompt"] if m["role"] == "assistant"]
    heard = [str(m["content"]) for m in row["prompt"][1:] if m["role"] == "user"]
    errs = bool(rng.random() < error_rate)
    if game["game"] == "maze":
        place = _read_place(heard[-1] if heard else str(row["prompt"][-1]["content"]))
        return _choose(list(MOVES), rng) if errs else find_way(place)[0]
    if game["game"] == "wordle":
        known = list(zip(said, heard, strict=True))
        left = [word for word in game["possible"] if all(mark(spell(word), one) == reply for one, reply in known)]
        return spell(_choose(game["possible"] if errs else left, rng))
    return _ask(game["possible"], said, heard, rng, errs=errs)


def find_way(place: Place) -> list[str]:
    """Return the moves of a shortest way to the goal."""
    ways: dict[Place, list[str]] = {place: []}
    queue = deque([place])
    while queue:
        at = queue.popleft()
        if at == GOAL:
            return ways[at]
        for move in MOVES:
            there = step_from(at, move)
            if there not in ways:
                ways[there] = [*ways[at], move]
                queue.append(there)
    raise ValueError(f"no way leads from {place} to the goal")


def step_from(place: Place, move: str) -> Place:
    """Return the cell that a move leads to: the same one where a wall or the border is in the way."""
    down, right = MOVES[move]
    there = (place[0] + down, place[1] + right)
    inside = 0 <= there[0] < SIDE and 0 <= there[1] < SIDE
    return there if inside and frozenset((place, there)) not in WALLS else place


def name_place(place: Place) -> str:
    """Return how a maze tells where one is."""
    return f"at {place[0]} {place[1]}"


def spell(word: str) -> str:
    """Return a word as it is said in Wordle, letter by letter."""
    return " ".join(word)


def mark(secret: str, guess: str) -> str:
    """Return a mark for each letter of a spelt guess: g in its place, y elsewhere in the secret, b not in it."""
    hidden, letters = secret.split(), guess.split()
    rest = [one for one, other in zip(hidden, letters, strict=True) if one != other]
    marks = []
    for one, other in zip(hidden, letters, strict=True):
        if one == other:
            marks.append("g")
        elif other in rest:
            rest.remove(other)
            marks.append("y")
        else:
            marks.append("b")
    return " ".join(marks)


def _ask(
    possible: Sequence[str], said: Sequence[str], heard: Sequence[str], rng: np.random.Generator, *, errs: bool
) -> str:
    """Ask about a property, or guess: at random, or what tells the things that are left apart best."""
    left = list(possible)
    for turn, reply in zip(said, heard, strict=True):
        about = turn.removesuffix("?").strip()
        left = [
            t for t in left if ((about in THINGS[t].split()) == (reply == "yes") if about in PROPERTIES else t != about)
        ]
    if errs:
        return _choose([*(f"{one}?" for one in PROPERTIES), *possible], rng)
    if len(left) == 1:
        return left[0]
    even = {one: abs(sum(one in THINGS[t].split() for t in left) - len(left) / 2) for one in PROPERTIES}
    return f"{min(even, key=lambda one: even[one])}?"


def _make_maze(place: Place) -> Row:
    return make_row("maze", f"maze {name_place(place)}", name_place(GOAL), {"game": "maze", "start": list(place)})


def _draw_secret(game: Game, rng: np.random.Generator) -> Row:
    every = list(THINGS) if game == "questions" else list(WORDS)
    possible = sorted(every[int(i)] for i in rng.permutation(len(every))[:CANDIDATES])
    secret = _choose(possible, rng)
    row = make_row(game, f"{game} {' '.join(possible)} = {secret}", secret, {"game": game, "possible": possible})
    return row | {"prompt": [{"role": "user", "content": f"{game} {' '.join(possible)}"}]}


def _list_cells() -> list[Place]:
    return [(row, column) for row in range(SIDE) for column in range(SIDE)]


def _read_place(text: str) -> Place:
    row, column = text.split()[-2:]
    return int(row), int(column)


def _choose(items: Sequence[str], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]

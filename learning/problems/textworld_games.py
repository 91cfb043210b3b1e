"""Problems of the environment `textworld`: games of TextWorld's generator."""

import json
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.problems.starts import draw_start
from learning.text_game.textworld import generate_game


def textworld_games(
    *,
    size: Annotated[int, Field(ge=1)],
    split: Literal["train", "test"],
    seed: int = 0,
    quest: Annotated[list[Annotated[int, Field(ge=1, le=20)]], Field(min_length=1)] = [2, 3],  # noqa: B006
    rooms: Annotated[int, Field(ge=1, le=20)] = 2,
    objects: Annotated[int, Field(ge=1, le=30)] = 3,
    hints: bool = False,
    lists_commands: bool = False,
    instruction: str = "",
) -> list[Row]:
    """Generate games of TextWorld with so many `rooms` and `objects`, cycling through `quest`.

    `quest` is the difficulty: the most commands that the quest takes, also in the row's family (`textworld3`). With
    `hints` the objective names them all, else the last one; `lists_commands` is as in the environment. Games of the
    splits have other numbers; TextWorld's generator may draw the same rooms for two. Needs `pip install
    'posttrain[textworld]'`.
    """
    rows: list[Row] = []
    for place in range(size):
        number = draw_start(split, seed, place)
        length = quest[place % len(quest)]
        world, game = generate_game(number, rooms=rooms, objects=objects, quest=length, hints=hints)
        shown = f"{world.objective}\n{world.show(world.begin(), lists_commands=lists_commands)}"
        prompt = [{"role": "user", "content": instruction + shown}]
        name, family = f"textworld-{number}-{length}", f"textworld{length}"
        metadata = json.dumps({"textworld": game})
        rows.append({"id": name, "prompt": prompt, "answer": None, "family": family, "metadata": metadata})
    return rows

"""Environment `crafter`: a meadow with trees and stones in which wood leads to a table, a pickaxe and stone."""

from dataclasses import asdict

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.crafting import Meadow, act, describe, read_meadow


class Environment:
    """Collect a stone: wood from a tree, a table of wood, a pickaxe of wood at the table, then stone (after Crafter).

    Actions are `move_left`, `move_right`, `move_up`, `move_down`, `do`, `place_table`, `make_pickaxe` and `noop`; a
    move turns the player first. The episode ends with reward 1 at the first stone.
    """

    def begin(self, row: Row, seed: int) -> "Crafting":
        """Return an episode. Raise StepError for a row without a map."""
        return Crafting(read_meadow(row))


class Crafting:
    """One episode."""

    def __init__(self, state: Meadow) -> None:
        self.now = state

    @property
    def state_name(self) -> str:
        """Return what the player sees."""
        return describe(self.now)

    def step(self, action: str) -> Outcome:
        """Carry out an action."""
        after = act(self.now, action.strip())
        if after is None:
            return Outcome(f"not possible\n{describe(self.now)}", ok=False)
        self.now = after
        return Outcome(describe(after), done=after.stone > 0, reward=float(after.stone > 0))

    def save(self) -> Row:
        """Return the state as JSON."""
        return asdict(self.now)

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.now = Meadow(**{**saved, "cells": tuple(saved["cells"]), "at": (saved["at"][0], saved["at"][1])})

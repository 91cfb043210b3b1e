"""Environment `routed`: another environment for each family of problems."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode
from schemas.errors import StepError
from schemas.use import EnvUse


class Environment:
    """Play the environment that `families` names for the problem's family, so that one stage has several worlds."""

    def __init__(self, *, families: Annotated[dict[str, EnvUse], Field(min_length=1)]) -> None:
        self.families = {name: build_environment(use, {}) for name, use in families.items()}

    def begin(self, row: Row, seed: int) -> Episode:
        """Return an episode. Raise StepError for a row of a family that has no environment."""
        if row["family"] not in self.families:
            known = ", ".join(self.families)
            raise StepError(f"env routed: row {row['id']} is of family {row['family']}; `families` has {known}")
        return self.families[row["family"]].begin(row, seed)

"""Problems that are the starts of an environment's episodes."""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from schemas.errors import StepError
from schemas.use import EnvUse


def starts(
    *,
    env: EnvUse,
    size: Annotated[int, Field(ge=1)],
    split: Literal["train", "test"] = "train",
    seed: int = 0,
    instruction: str = "",
) -> list[Row]:
    """Return starts of an environment that has them, such as `gymnasium`: `instruction`, then what is seen first.

    `env` is the environment as in the stages that play it. Starts of `train` and `test` are reset with different seeds;
    those of an environment with data sets of its own, such as `verifiers`, are the problems there.
    """
    environment: Any = build_environment(env, {})
    if hasattr(environment, "list_starts"):
        if instruction:
            raise StepError(f"problems starts: the problems of environment {env.use} take no `instruction`")
        return environment.list_starts(size, split, seed)
    if not hasattr(environment, "show_start"):
        raise StepError(f"problems starts: environment {env.use} has no starts of its own; name its own problems")
    rows: list[Row] = []
    for number in range(size):
        start = draw_start(split, seed, number)
        prompt = [{"role": "user", "content": f"{instruction}{environment.show_start(start)}"}]
        name = f"{env.use.rpartition(':')[2]}-{start}"
        metadata = json.dumps({"start": start})
        rows.append({"id": name, "prompt": prompt, "answer": None, "family": env.use, "metadata": metadata})
    return rows


def draw_start(split: str, seed: int, number: int) -> int:
    """Return the seed of a start: even for `train`, odd for `test`, so that no start is in both."""
    digest = hashlib.sha256(f"{split} {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 2 << 1 | (split == "test")

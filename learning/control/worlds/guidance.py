"""Worlds with guidance in words: what a text says is appended to the observation as an embedding.

Shapes: N worlds, O numbers of an observation, E of an embedding.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import flatdim, flatten
from pydantic import Field

from learning.curation.embeddings import hashed_ngrams
from learning.lookup import Inner
from schemas.control import TellUse, WorldUse
from schemas.errors import StepError
from schemas.references import DirectoryRef

if TYPE_CHECKING:
    WorldFunction = Inner
    TellFunction = Inner
else:
    WorldFunction = WorldUse
    TellFunction = TellUse
"""Options of a function: a world, and what says in words what its observations show; it gets them bound."""
Size = Annotated[int, Field(ge=2)]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
FILE = "guidance.json"


def tell_numbers(observation_NO: np.ndarray, *, digits: Annotated[int, Field(ge=0)] = 0) -> list[str]:
    """Say the numbers of observations, rounded."""
    # Adding 0 makes −0 a 0.
    return [" ".join(f"{number:.{digits}f}" for number in np.round(row, digits) + 0.0) for row in observation_NO]


def embed_texts(texts: Sequence[str], size: int) -> np.ndarray:
    """Return hashed counts of the words of texts, of length 1, or 0 where there is no word (N, E) float32."""
    if not texts:
        return np.zeros((0, size), np.float32)
    rows = [{"completion": [{"content": text}]} for text in texts]
    counts_NE = hashed_ngrams(rows, dim=size, ngram=1, part="written")
    norm_N1 = np.linalg.norm(counts_NE, axis=1, keepdims=True)
    return (counts_NE / np.where(norm_N1 > 0, norm_N1, 1.0)).astype(np.float32)


def read_guidance(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the guidance for each situation, several alternatives. Raise StepError if a folder has none."""
    try:
        return {situation: list(ways) for situation, ways in json.loads((folder / FILE).read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise StepError(f"guidance: {folder.name} has no {FILE}: name the output of `keep_guidance`") from error


class Guided(gymnasium.Env):
    """A world whose observations end with the embedding of the guidance for the present situation.

    Of several texts for a situation an episode keeps to one place among them. Situations without guidance have zeros.
    """

    def __init__(self, world: Any, tell: Any, guidance: dict[str, list[dict[str, Any]]], size: int) -> None:
        self.world, self.tell, self.size = world, tell, size
        texts = {situation: [str(one["guidance"]) for one in ways] for situation, ways in guidance.items()}
        self.embedded = {situation: embed_texts(ways, size) for situation, ways in texts.items()}
        self.action_space = world.action_space
        seen = flatdim(world.observation_space) + size
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (seen,), np.float32)

    def show(self, observation: Any) -> np.ndarray:
        """Return an observation with the guidance for it."""
        flat_O = np.asarray(flatten(self.world.observation_space, observation), np.float32)
        ways_KE = self.embedded.get(self.tell(observation_NO=flat_O[None])[0])
        guidance_E = np.zeros(self.size, np.float32) if ways_KE is None else ways_KE[int(self.place * len(ways_KE))]
        return np.concatenate([flat_O, guidance_E])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin an episode of the world, and draw which alternatives it is guided by."""
        super().reset(seed=seed)
        self.place = float(self.np_random.random())
        observation, info = self.world.reset(seed=seed, options=options)
        return self.show(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Act in the world."""
        observation, reward, terminated, truncated, info = self.world.step(action)
        return self.show(observation), float(reward), terminated, truncated, info

    def close(self) -> None:
        """Close the world."""
        self.world.close()


def guided(
    *,
    world: WorldFunction,
    tell: TellFunction,
    guidance: DirectoryRef | None = None,
    size: Size = 32,
) -> Guided:
    """Return a world with the embedding of guidance, of `size` numbers, at the end of its observations (null: zeros).

    `tell` says in words what an observation of the world shows; guidance is looked up by what it says.
    """
    table = {} if guidance is None else read_guidance(Path(guidance))
    return Guided(world(), tell, table, size)

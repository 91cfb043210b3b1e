"""Conversations about items: a simulated user wants one, answers about attributes, and takes or refuses what is shown.

Shapes: U users, V items, P attributes, E numbers of an embedding.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from schemas.errors import StepError
from schemas.references import DirectoryRef

Count = Annotated[int, Field(ge=1)]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
ITEMS, LOG = "items.json", "log.json"
PARTS = ("train", "test")
FOUND, CONFIRMED, WRONG, GIVEN_UP = 1.0, 0.01, -0.1, -0.3
"""Rewards of Lei et al. (2020), which Deng et al. (2021) use: a wrong turn is a refused attribute or recommendation."""


@dataclass(frozen=True)
class Catalogue:
    """Items with their attributes, and who took which item."""

    has_VP: np.ndarray
    pairs: dict[str, list[tuple[int, int]]]
    """Users and items of each part of the log."""
    of_users_UE: np.ndarray
    of_items_VE: np.ndarray
    of_attributes_PE: np.ndarray


def read_catalogue(folder: Path, size: int) -> Catalogue:
    """Return the catalogue in a folder, with embeddings of `size` numbers fitted to its items and the part `train`.

    `items.json` maps items to lists of attributes, `log.json` the parts `train` and `test` to lists of pairs of a user
    and an item. Raise StepError for other files, items without an attribute to ask about, and unknown items.
    """
    try:
        given: dict[str, list[str]] = json.loads((folder / ITEMS).read_text())
        log: dict[str, list[list[str]]] = json.loads((folder / LOG).read_text())
        items, attributes = sorted(given), sorted({name for names in given.values() for name in names})
        users = sorted({user for part in PARTS for user, _ in log[part]})
        places = [{name: n for n, name in enumerate(names)} for names in (users, items)]
        pairs = {part: [(places[0][user], places[1][item]) for user, item in log[part]] for part in PARTS}
    except KeyError as error:
        raise StepError(f"log: {folder.name}/{LOG} needs `train` and `test`, with items of {ITEMS}: {error}") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StepError(
            f"log: {folder.name} needs {ITEMS}, {{item: [attribute, …]}}, and {LOG}, "
            f"{{train: [[user, item], …], test: …}}: {type(error).__name__}: {error}"
        ) from error
    bare = next((item for item in items if not given[item]), None)
    if bare is not None or len(items) < len(attributes) or not all(pairs.values()):
        raise StepError(
            f"log: {folder.name} needs an attribute for every item ({bare} has none), at least as many items as "
            f"attributes ({len(items)}, {len(attributes)}), and pairs in both parts"
        )
    has_VP = np.array([[float(name in given[item]) for name in attributes] for item in items])
    return Catalogue(has_VP, pairs, *fit_embeddings(pairs["train"], has_VP, len(users), size))


def fit_embeddings(
    pairs: list[tuple[int, int]], has_VP: np.ndarray, users: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return embeddings of users, items and attributes whose products are nearest to who took and what has what.

    The best approximation of rank `size` of both tables, one above the other, by singular values.
    """
    took_UV = np.zeros((users, len(has_VP)))
    for user, item in pairs:
        took_UV[user, item] = 1.0
    left, values, right = np.linalg.svd(np.concatenate([took_UV, has_VP.T]), full_matrices=False)
    rows, columns = left[:, :size] * np.sqrt(values[:size]), right[:size].T * np.sqrt(values[:size])
    return rows[:users], columns, rows[users:]


def squash(x: np.ndarray) -> np.ndarray:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


class Conversation(gymnasium.Env):
    """A user who wants one item; it ends when it is recommended, or after `limit` turns.

    Choices are items, then attributes. The first attribute is the user's own.
    """

    def __init__(self, catalogue: Catalogue, part: str, limit: int, list_size: int, pays: str) -> None:
        self.catalogue, self.part, self.limit, self.list_size, self.pays = catalogue, part, limit, list_size, pays
        self.items, self.attributes = catalogue.has_VP.shape
        size = (self.items + 1) * (self.attributes + 1) - 1
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(self.items + self.attributes)

    def weigh_items(self) -> np.ndarray:
        """Return how much the user is likely to want each item (V,), from 0 to 1; 0 for those no longer possible.

        σ(e_u·e_v + Σ e_p·e_v over confirmed attributes − Σ σ(e_p·e_v) over refused ones that the item has).
        """
        one = self.catalogue
        of_items = one.of_attributes_PE @ one.of_items_VE.T
        wanted_V = one.of_items_VE @ one.of_users_UE[self.user] + of_items[self.confirmed].sum(0)
        unwanted_V = (squash(of_items[self.refused]) * one.has_VP.T[self.refused]).sum(0)
        return squash(wanted_V - unwanted_V) * self.possible

    def observe(self) -> np.ndarray:
        """Return the edges between possible items and attributes not refused, the items' weights, what is confirmed."""
        edges_VP = self.catalogue.has_VP * self.possible[:, None]
        edges_VP[:, self.refused] = 0.0
        confirmed_P = np.zeros(self.attributes)
        confirmed_P[self.confirmed] = 1.0
        return np.concatenate([edges_VP.reshape(-1), self.weigh_items(), confirmed_P]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw a user with the item that they want, and the attribute of it that they name first."""
        super().reset(seed=seed)
        pairs = self.catalogue.pairs[self.part]
        self.user, self.target = pairs[int(self.np_random.integers(len(pairs)))]
        self.possible, self.turns = np.ones(self.items), 0
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self.confirm(int(self.np_random.choice(np.flatnonzero(self.catalogue.has_VP[self.target]))))
        return self.observe(), {}

    def confirm(self, attribute: int) -> None:
        """Keep the items that have an attribute."""
        self.confirmed.append(attribute)
        self.possible = self.possible * self.catalogue.has_VP[:, attribute]

    def list_items(self, chosen: int) -> list[int]:
        """Return what is recommended: the chosen item, and the possible ones of the highest weight after it."""
        weight_V = self.weigh_items()
        others = [int(item) for item in np.argsort(-weight_V, kind="stable") if weight_V[item] > 0 and item != chosen]
        return [chosen, *others[: self.list_size - 1]]

    def answer(self, choice: int) -> float:
        """Return what a turn earns. What was asked before, or is impossible, is a wrong turn that changes nothing."""
        attribute = choice - self.items
        if attribute < 0:
            if not self.possible[choice]:
                return WRONG
            shown = self.list_items(choice)
            self.possible[shown] = 0.0
            return FOUND if self.target in shown else WRONG
        if attribute in self.confirmed or attribute in self.refused:
            return WRONG
        if self.catalogue.has_VP[self.target, attribute]:
            self.confirm(attribute)
            return CONFIRMED
        self.refused.append(attribute)
        return WRONG

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Recommend items, or ask for an attribute; the last turn without success is a failure."""
        earned = self.answer(int(action))
        self.turns += 1
        found = earned == FOUND
        over = found or self.turns >= self.limit
        reward = GIVEN_UP if over and not found else earned
        return self.observe(), float(found) if self.pays == "success" else reward, over, False, {}


def conversation(
    *,
    log: DirectoryRef,
    part: Literal["train", "test"] = "train",
    limit: Count = 8,
    list_size: Count = 1,
    embedding: Count = 8,
    pays: Literal["turns", "success"] = "turns",
) -> Conversation:
    """Return conversations with the users of a part of a log; `pays: success` gives 1 for the wanted item alone.

    A recommendation has `list_size` items. Weights of items come from embeddings of `embedding` numbers, which are
    fitted to the part `train`.
    """
    return Conversation(read_catalogue(Path(log), embedding), part, limit, list_size, pays)


def write_interactions(
    context: Any,
    *,
    users: Count = 20,
    items: Count = 30,
    attributes: Count = 8,
    share: Annotated[float, Field(gt=0, lt=1)] = 0.4,
    each: Annotated[int, Field(ge=2)] = 8,
    taste: float = 1.5,
) -> dict[str, float]:
    """Write a log: items with random attributes, and users who take `each` items by what they like.

    An item has each attribute with probability `share`, and at least one. A user's taste for attributes is Gaussian
    with deviation `taste`; a fourth of the items that a user takes, at least one, are of the part `test`.
    """
    if items < max(attributes, each):
        raise StepError(f"write_interactions: {items} items are fewer than {attributes} attributes, or {each} to take")
    rng = np.random.default_rng(context.seed)
    has_VP = rng.random((items, attributes)) < share
    has_VP[np.arange(items), rng.integers(attributes, size=items)] = True
    log: dict[str, list[list[str]]] = {part: [] for part in PARTS}
    for user in range(users):
        liking_V = has_VP @ rng.normal(scale=taste, size=attributes)
        chance_V = np.exp(liking_V - liking_V.max()) + 1e-6
        taken = rng.choice(items, size=each, replace=False, p=chance_V / chance_V.sum())
        held = max(1, each // 4)
        log["test"] += [[f"user{user}", f"item{item:03}"] for item in taken[:held].tolist()]
        log["train"] += [[f"user{user}", f"item{item:03}"] for item in taken[held:].tolist()]
    named = {f"item{v:03}": [f"attribute{p}" for p in np.flatnonzero(has_VP[v]).tolist()] for v in range(items)}
    folder = context.output("result")
    (folder / ITEMS).write_text(json.dumps(named, indent=1) + "\n")
    (folder / LOG).write_text(json.dumps(log) + "\n")
    return {"items": items, **{part: len(pairs) for part, pairs in log.items()}}

"""Watermarks of a language model that does not change: a designer divides the vocabulary, texts favour its green part.

A world whose action is the list: the choice of a designer who sees how often each token stands in a text. An episode
asks it for four lists: of a prompt, with which the backbone writes a text; of that text, in which the watermark is
detected; of the text after an attack that removes watermarks; of the text after one that turns its meaning round.
Shapes: V tokens of the vocabulary, T of a text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
import torch
from pydantic import Field

from learning.control.worlds.text_attacks import Meanings, remove_words, swap_words, turn_round
from learning.data.chat import decode, encode_prompt
from learning.data.rows import Row, read_rows
from learning.generation.engines.slots import name_of_cache
from learning.lookup import Inner
from learning.models.policy import Policy, load_policy
from schemas.control import ActingUse
from schemas.errors import StepError
from schemas.references import PolicyRef, PromptsRef

if TYPE_CHECKING:
    ActingFunction = Inner
else:
    ActingFunction = ActingUse
"""Option of a function: a rule that acts, which it gets bound."""
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
Share = Annotated[float, Field(gt=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Part = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Key = Annotated[int, Field(ge=0)]
Meant = list[tuple[list[str], list[str]]]
"""Pairs of groups of words: synonyms in a group, opposites in a pair."""
TERMS = ("detection", "quality", "removal", "spoofing")


def compute_z(green: int, tokens: int, gamma: float) -> float:
    """Return by how many deviations the number of green tokens exceeds that of a text without a watermark.

    (g − γT) / √(Tγ(1 − γ)), Kirchenbauer et al. 2023, eq. 2; 0 for a text without tokens.
    """
    return (green - gamma * tokens) / math.sqrt(tokens * gamma * (1 - gamma)) if tokens else 0.0


def favour_green(logits_V: torch.Tensor, green_V: torch.Tensor, delta: float) -> torch.Tensor:
    """Return logits with `delta` added to those of green tokens."""
    return logits_V + delta * green_V


def hashed_lists(observation_NO: np.ndarray, *, key: int = 0, gamma: Share = 0.5) -> np.ndarray:
    """Divide the vocabulary in the same way for all texts, by a key: `gamma` of the tokens are green (1), others −1."""
    size = observation_NO.shape[1]
    order_V = np.random.default_rng([key, size]).permutation(size)
    list_V = np.where(order_V < round(gamma * size), 1.0, -1.0)
    return np.repeat(list_V[None], len(observation_NO), axis=0)


@dataclass(frozen=True)
class Attacks:
    """What is done to texts."""

    deleted: float
    """Share of the words that are deleted."""
    swapped: float
    """Share of the words with synonyms that are replaced by one."""
    meanings: Meanings

    def remove(self, text: str, rng: np.random.Generator) -> str:
        """Return a text with the same meaning in other words."""
        return remove_words(swap_words(text, self.meanings, self.swapped, rng), self.deleted, rng)

    def spoof(self, text: str) -> str:
        """Return a text that says the opposite in nearly the same words."""
        return turn_round(text, self.meanings)


@dataclass(frozen=True)
class Scheme:
    """How a text is marked, and what it earns."""

    gamma: float
    """Share of green tokens that is meant."""
    delta: float
    """Added to the logits of green tokens."""
    length: int
    """Tokens of a text."""
    weights: dict[str, float]
    """Of the terms."""
    cap: float
    """Most that a term may be away from that of the anchor."""
    balance: float
    """Weight of the squared difference between the share of green tokens and gamma."""
    key: int
    """Of the random numbers of all prompts."""


class Watermarks(gymnasium.Env):
    """Earns what the designer's lists are worth, compared with those of an anchor on the same prompt.

    A term is that of the designer minus that of the anchor, within ±`cap`; without an anchor it is the value itself.
    All random numbers are those of the prompt: equal lists have equal texts, whose terms are exactly 0.
    """

    def __init__(
        self, backbone: Policy, rows: Sequence[Row], scheme: Scheme, attacks: Attacks, anchor: Inner | None
    ) -> None:
        self.backbone, self.rows, self.scheme, self.attacks, self.anchor = backbone, rows, scheme, attacks, anchor
        self.size = len(backbone.tokenizer)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (self.size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.size,), np.float32)
        self.barred_V = torch.zeros(self.size)
        self.barred_V[list(backbone.tokenizer.all_special_ids)] = -torch.inf
        self.anchored: dict[int, dict[str, float]] = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw a prompt."""
        super().reset(seed=seed)
        self.begin(int(self.np_random.integers(len(self.rows))))
        return self.count(self.shown), {}

    def begin(self, place: int) -> None:
        """Begin with the prompt of a row."""
        self.place, self.phase = place, 0
        self.shown = encode_prompt(self.backbone.tokenizer, self.rows[place]["prompt"])
        self.values: dict[str, float] = {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Take the list of the text that is shown: its green tokens have a number above 0."""
        green_V = np.asarray(action).reshape(-1) > 0
        before = set(self.values)
        self.advance(green_V)
        terms = {name: self.compare(name) for name in self.values if name not in before}
        terms["balance"] = -self.scheme.balance * (float(green_V.mean()) - self.scheme.gamma) ** 2
        earned = sum(self.scheme.weights.get(name, 1.0) * value for name, value in terms.items())
        done = self.phase == len(TERMS)
        return self.count(self.shown), earned, done, False, {"terms": terms, "values": dict(self.values)}

    def advance(self, green_V: np.ndarray) -> None:
        """Write, detect, or detect after an attack, with a list; `values` and the text that is shown change."""
        if self.phase == 0:
            self.text, self.values["quality"] = self.write(self.place, green_V, self.scheme.delta)
        else:
            value = self.detect(self.shown, green_V)
            name = ("detection", "removal", "spoofing")[self.phase - 1]
            self.values[name] = -value if name == "spoofing" else value
        rng = np.random.default_rng([self.scheme.key, self.place, 1])
        texts = (self.text, self.attacks.remove(self.text, rng), self.attacks.spoof(self.text))
        self.shown = self.encode(texts[min(self.phase, len(texts) - 1)])
        self.phase += 1

    def compare(self, name: str) -> float:
        """Return a term: its value, or how far it is from that of the anchor, at most `cap`."""
        if self.anchor is None:
            return self.values[name]
        difference = self.values[name] - self.measure_anchor(self.place)[name]
        return max(-self.scheme.cap, min(self.scheme.cap, difference))

    def measure_anchor(self, place: int) -> dict[str, float]:
        """Return the values of the anchor's lists on a prompt; those of a prompt are kept."""
        if place not in self.anchored:
            other = Watermarks(self.backbone, self.rows, self.scheme, self.attacks, None)
            other.begin(place)
            while other.phase < len(TERMS):
                (action_V,) = self.ask_anchor(other.count(other.shown)[None])
                other.advance(action_V > 0)
            self.anchored[place] = other.values
        return self.anchored[place]

    def ask_anchor(self, observation_NO: np.ndarray) -> np.ndarray:
        """Return the anchor's lists."""
        rule: Any = self.anchor
        return rule.bound.ask(0, {"observation_NO": observation_NO, "rng": np.random.default_rng(0), "spaces": None})

    def write(self, place: int, green_V: np.ndarray, delta: float) -> tuple[str, float]:
        """Return a text of the backbone that favours green tokens, and its mean log-probability without favour."""
        rng = np.random.default_rng([self.scheme.key, place, 0])
        ids = encode_prompt(self.backbone.tokenizer, self.rows[place]["prompt"])
        first, total, favoured_V = len(ids), 0.0, torch.tensor(green_V, dtype=torch.float32)
        new, kept, cache = ids, None, name_of_cache(type(self.backbone.model))
        with torch.no_grad():
            for _ in range(self.scheme.length):
                made = self.backbone.model(torch.tensor([new]), use_cache=True, **{cache: kept})
                logits_V = made.logits[0, -1].float() + self.barred_V
                chances_V = favour_green(logits_V, favoured_V, delta).double().softmax(-1).cumsum(-1).numpy()
                token = min(int(np.searchsorted(chances_V, rng.random() * chances_V[-1], side="right")), self.size - 1)
                total += float(logits_V.log_softmax(-1)[token])
                ids.append(token)
                new, kept = [token], made[cache]
        return decode(self.backbone.tokenizer, ids[first:]), total / self.scheme.length

    def detect(self, ids: Sequence[int], green_V: np.ndarray) -> float:
        """Return the z of a text with a list."""
        return compute_z(int(green_V[list(ids)].sum()) if ids else 0, len(ids), self.scheme.gamma)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(self.backbone.tokenizer(text, add_special_tokens=False)["input_ids"])

    def count(self, ids: Sequence[int]) -> np.ndarray:
        """Return the share of each token in a text (V,)."""
        counts_V = np.bincount(ids, minlength=self.size) if len(ids) else np.zeros(self.size)
        return (counts_V / max(len(ids), 1)).astype(np.float32)


def watermarks(
    *,
    backbone: PolicyRef,
    prompts: PromptsRef,
    anchor: ActingFunction | None = None,
    meanings: Meant = [],  # noqa: B006
    gamma: Share = 0.5,
    delta: Weight = 2.0,
    length: Count = 24,
    detection: Weight = 1.0,
    quality: Weight = 1.0,
    removal: Weight = 1.0,
    spoofing: Weight = 1.0,
    cap: Annotated[float, Field(gt=0)] = 2.0,
    balance: Weight = 20.0,
    deleted: Part = 0.1,
    swapped: Part = 0.5,
    key: Key = 0,
) -> Watermarks:
    """Return texts of a model that does not change, for a designer of lists of green tokens.

    `anchor` is a rule whose lists the terms are compared with, within `cap`; null: they are maximised. `meanings` are
    pairs of groups of words, `[[clean, tidy], [dirty, messy]]`: synonyms in a group, opposites in a pair.
    """
    rows = read_rows(Path(prompts), "prompts")
    if not rows:
        raise StepError("watermarks: there are no prompts")
    weights: dict[str, float] = dict(zip(TERMS, (detection, quality, removal, spoofing), strict=True))
    scheme = Scheme(gamma, delta, length, weights, cap, balance, key)
    attacks = Attacks(deleted, swapped, meanings)
    return Watermarks(load_backbone(str(backbone)), rows, scheme, attacks, anchor)


@lru_cache(maxsize=1)
def load_backbone(folder: str) -> Policy:
    """Return the policy of a folder; the worlds of a process share it, because it never changes."""
    return load_policy(Path(folder))

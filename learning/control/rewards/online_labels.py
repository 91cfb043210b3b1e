"""Rewards for what happens, in words, by labels that another model gives while a policy is trained (ONI).

Captions of steps go to an annotator, which is never waited for; what it has said so far is a table, a classifier or a
ranking, whose values are added to the world's reward. Shapes: N worlds, K captions, F features.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zlib import crc32

import numpy as np
from pydantic import Field

from learning.lookup import Inner, RewardFunction
from schemas.base import JsonObject
from schemas.control import CaptionUse
from schemas.errors import StepError

if TYPE_CHECKING:
    CaptionFunction = Inner
else:
    CaptionFunction = CaptionUse
"""Option of a function: what happened in words, which it gets bound."""
Mode = Literal["hash", "classify", "rank"]
Latency = Annotated[int, Field(ge=0)] | Literal["none"]
Scores = Sequence[float | None]
WORD = re.compile(r"[^\W_]+")
FEATURES, MOST, PASSES, RATE = 129, 256, 50, 0.5
"""Numbers of a caption; labelled captions that models are fitted to, the newest; steps of a fit, and their size."""
CUT = 500
"""Characters of a caption that are read."""


@dataclass
class Request:
    """Captions that the annotator was asked for, and its reply."""

    captions: list[str]
    step: int
    scores: Scores | None = None
    error: Exception | None = None

    def answer(self, ask: Callable[[list[str]], Scores]) -> None:
        """Take the annotator's scores, or what it raises."""
        try:
            self.scores = ask(self.captions)
        except Exception as error:
            self.error = error


@dataclass
class OnlineLabels:
    """What was asked, what was said, and a linear model of it."""

    mode: Mode
    steps: int = 0
    """Steps of each world so far."""
    scores: dict[str, float] = field(default_factory=dict)
    """What the annotator said of captions, from 0 to 1, in the order of its replies."""
    asked: dict[str, None] = field(default_factory=dict)
    """Captions that were sent or wait for it, each once."""
    waiting: list[str] = field(default_factory=list)
    weight_F: np.ndarray = field(default_factory=lambda: np.zeros(FEATURES))
    pending: Request | None = None

    def save(self) -> JsonObject:
        """Return what `load` reads; what the annotator has not answered waits again, but for its time."""
        pending = None if self.pending is None else [self.pending.captions, self.pending.step]
        state = {
            "mode": self.mode,
            "steps": self.steps,
            "scores": self.scores,
            "asked": list(self.asked),
            "waiting": self.waiting,
        }
        return json.loads(json.dumps({**state, "weights": self.weight_F.tolist(), "pending": pending}))

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "OnlineLabels":
        """Return what `save` described."""
        pending = None if state["pending"] is None else Request(*state["pending"])
        asked, weight_F = dict.fromkeys(state["asked"]), np.array(state["weights"])
        scores, waiting = dict(state["scores"]), list(state["waiting"])
        return cls(state["mode"], state["steps"], scores, asked, waiting, weight_F, pending)

    def note(self, captions: Sequence[str]) -> None:
        """Put captions that are new into the queue; nothing is said of a step without one."""
        for caption in captions:
            if caption and caption not in self.asked:
                self.asked[caption] = None
                self.waiting.append(caption)

    def take_batch(self, size: int) -> Request | None:
        """Return the newest captions in the queue as a request; None if there are none."""
        if not self.waiting:
            return None
        captions, self.waiting = self.waiting[-size:], self.waiting[:-size]
        return Request(captions, self.steps)

    def learn(self, request: Request) -> None:
        """Take a reply, and fit the model to all of them. Raise StepError for an annotator that failed."""
        if request.error is not None:
            raise StepError(f"annotator: {request.error}") from request.error
        scores = list(request.scores or [])
        if len(scores) != len(request.captions):
            raise StepError(f"annotator: {len(scores)} scores for {len(request.captions)} captions")
        given = {caption: score for caption, score in zip(request.captions, scores, strict=True) if score is not None}
        if bad := [score for score in given.values() if not 0 <= score <= 1]:
            raise StepError(f"annotator: its scores must be from 0 to 1, and one is {bad[0]}")
        self.scores |= {caption: float(score) for caption, score in given.items()}
        if self.mode != "hash" and given:
            self.fit()

    def fit(self) -> None:
        """Fit the model to the newest labels: logistic regression on them, or on the pairs that they order."""
        captions = list(self.scores)[-MOST:]
        feature_KF, score_K = describe_captions(captions), np.array([self.scores[caption] for caption in captions])
        if self.mode == "classify":
            row_MF, target_M = feature_KF, (score_K >= 0.5).astype(float)
        else:
            first_M, second_M = np.nonzero(score_K[:, None] > score_K)
            row_MF, target_M = feature_KF[first_M] - feature_KF[second_M], np.ones(len(first_M))
        for _ in range(PASSES if len(row_MF) else 0):
            chance_M = 1 / (1 + np.exp(-row_MF @ self.weight_F))
            self.weight_F = self.weight_F + RATE * row_MF.T @ (target_M - chance_M) / len(row_MF)

    def reward(self, captions: Sequence[str]) -> np.ndarray:
        """Return the intrinsic rewards of captions (K,); 0 for none.

        `hash` pays the label, and 0 without one; `classify` the probability of the label 1 where it is more
        than a half; `rank` how many deviations a score is above the median of those that were ranked, and 0 below it.
        """
        if self.mode == "hash":
            return np.array([float(self.scores.get(caption, 0.0) >= 0.5) for caption in captions])
        value_K = describe_captions(captions) @ self.weight_F
        if self.mode == "classify":
            paid_K = np.where(value_K > 0, 1 / (1 + np.exp(-value_K)), 0.0)
        elif self.scores:
            known_K = describe_captions(list(self.scores)[-MOST:]) @ self.weight_F
            paid_K = np.maximum(value_K - np.median(known_K), 0) / max(float(known_K.std()), 1e-6)
        else:
            paid_K = np.zeros(len(captions))
        return np.where([bool(caption) for caption in captions], paid_K, 0.0)


def describe_captions(captions: Sequence[str]) -> np.ndarray:
    """Return features (K, F): 1, and counts of words by their hash."""
    feature_KF = np.zeros((len(captions), FEATURES))
    feature_KF[:, 0] = 1
    for number, caption in enumerate(captions):
        for word in WORD.findall(caption.lower()):
            feature_KF[number, 1 + crc32(word.encode()) % (FEATURES - 1)] += 1
    return feature_KF


def add_labels(
    next_observation_NO: np.ndarray,
    reward_N: np.ndarray,
    state: dict[str, Any],
    *,
    caption: CaptionFunction,
    annotator: RewardFunction,
    goal: str = "",
    reward_model: Mode = "hash",
    external: float = 0.1,
    intrinsic: float = 0.4,
    batch_size: Annotated[int, Field(ge=1)] = 100,
    latency: Latency = "none",
) -> dict[str, np.ndarray]:
    """Replace rewards by external · reward + intrinsic · what an annotator says of the caption (Zheng et al. 2024).

    The `annotator` is a reward: it scores captions as completions of a problem whose prompt is the `goal`, from 0 to 1,
    as `judges.model` and `judges.endpoint` do. It works beside the training, on the newest captions that it was not
    asked before, and its reply counts when it is there. With a number as `latency` it counts after that many steps of
    each world, and is waited for then, so that the same seed gives the same training.
    """
    captions = [text[:CUT] for text in caption(next_observation_NO=next_observation_NO)]
    if len(captions) != len(reward_N):
        raise StepError(f"caption {caption.bound.name}: {len(captions)} texts for {len(reward_N)} worlds")

    def ask(texts: list[str]) -> Scores:
        row = {"id": "goal", "prompt": [{"role": "user", "content": goal}], "answer": None, "metadata": "{}"}
        rng = np.random.default_rng([crc32(text.encode()) for text in texts])
        return annotator(rows=[{**row, "family": "captions"}] * len(texts), completions=texts, rng=rng)

    held = state.get("labels")
    labels = held if isinstance(held, OnlineLabels) else OnlineLabels.load(held) if held else OnlineLabels(reward_model)
    if held is not labels and labels.pending is not None:
        begin(labels.pending, ask, latency)  # it was under way when the step was cut off
    state["labels"] = labels
    if labels.pending is not None and is_due(labels.pending, ask, labels.steps, latency):
        request, labels.pending = labels.pending, None
        labels.learn(request)
    labels.note(captions)
    if labels.pending is None:
        labels.pending = labels.take_batch(batch_size)
        if labels.pending is not None:
            begin(labels.pending, ask, latency)
    labels.steps += 1
    return {"reward": external * reward_N + intrinsic * labels.reward(captions)}


def begin(request: Request, ask: Callable[[list[str]], Scores], latency: Latency) -> None:
    """Send a request to an annotator beside the training; with a latency nothing is sent before it is due."""
    if latency == "none":
        threading.Thread(target=request.answer, args=(ask,), daemon=True).start()


def is_due(request: Request, ask: Callable[[list[str]], Scores], step: int, latency: Latency) -> bool:
    """Return whether a reply counts now: it is there, or its latency is over, in which case it is asked for."""
    if latency == "none":
        return request.scores is not None or request.error is not None
    if step < request.step + latency:
        return False
    request.answer(ask)
    return True

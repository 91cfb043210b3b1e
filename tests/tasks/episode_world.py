"""An environment for tests that also processes of their own import, and turns that are short."""

from learning.environments.protocol import Outcome


class Played:
    """Three turns at most; what is said depends on the seed, the turn and the action."""

    def __init__(self, seed):
        self.seed, self.said = seed, []

    def step(self, action):
        self.said.append(action)
        place = sum(map(len, self.said)) + self.seed % 5
        done = len(self.said) == 3 or place % 7 == 0
        return Outcome("ab"[place % 2] * (1 + place % 3), done, -len(action) / 8, ok=bool(place % 4))


class Environment:
    """Functions of a seed and turns."""

    def begin(self, row, seed):
        return Played(seed)


def short(logits_BV, place_B):
    """Turns end soon."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) - 1.0
    return logits_BV

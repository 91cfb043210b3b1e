"""What stages with roles need in tests: a reward, a script, a turn order, and turns that are short."""

from learning.environments.protocol import Outcome
from learning.samples.conversation import NextTurn


def vowels(completions):
    """Share of the letter a in what was said last, less some for its length."""
    return [text.count("a") / (1 + len(text)) - 0.01 * len(text) for text in completions]


def echo(message, rng):
    """Say what was shown, or nothing, by chance."""
    return message if rng.random() < 0.5 else ""


def rebuilt(roles, turns, row):
    """Three turns of the first role, each with a context of its own."""
    if len(turns) == 3:
        return NextTurn(None, rewards={roles[0]: 1.0})
    text = turns[-1].text if turns else ""
    return NextTurn(roles[0], messages=[{"role": "user", "content": f"{len(turns)}{text}"}], rewards={roles[0]: 0.25})


def short(logits_BV, place_B):
    """Turns end soon."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) - 1.0
    return logits_BV


class Played:
    """The second turn is the last one."""

    def __init__(self):
        self.said = 0

    def step(self, action):
        self.said += 1
        return Outcome("b", done=self.said == 2, reward=0.5)


class Environment:
    """Answers every first turn."""

    def begin(self, row, seed):
        return Played()

"""An engine that follows hints as the recipe's model should; without one, nine samples do everything there is once."""

import re

from learning.data.chat import encode_completion
from learning.generation.engines.torch import Engine
from learning.models.checksum import compute_checksum
from learning.samples.engine_protocol import Generation

TOOLS, CLOSINGS = ("calculator", "reverse", "search"), ("done", "over", "yours")
PROMPTS: list[str] = []
"""Everything that was asked for a turn, as text."""
LEFT: list[int | None] = [None]
"""Turns before the process dies."""
WEIGHTS: list[str] = []


class Killed(BaseException):
    """What a kill looks like from inside."""


class Scripted:
    """Calls a tool, then answers with what it heard and a closing word."""

    def __init__(self, policy):
        self.tokenizer = policy.tokenizer

    def generate(self, requests, sampling):
        return [[self.one(request, request.first + i) for i in range(request.n)] for request in requests]

    def one(self, request, number):
        if LEFT[0] is not None:
            LEFT[0] -= 1
            if LEFT[0] < 0:
                raise Killed
        text = self.tokenizer.decode([*request.prompt_ids, *request.begun])
        PROMPTS.append(text)
        heard = re.findall("<user>(.*?)<eos>", text)
        hints = dict(re.findall(r"step (\d): (\w+)", text))
        if len(heard) == 1:
            reply = f"{hints.get('1', TOOLS[number % 3])}: {heard[0]}"
        else:
            reply = f"{heard[-1]} {hints.get('2', CLOSINGS[number // 3 % 3])}"
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": reply}])
        return Generation(ids, [-1.0] * len(ids), "stop")

    def sync(self, version):
        raise AssertionError("no weight changes")


class Weighed(Engine):
    """The engine of a stage, which weighs the model before every decode step."""

    def flight(self, sampling):
        flight = super().flight(sampling)
        step = flight.step

        def weighed():
            WEIGHTS.append(str([compute_checksum(tensor) for tensor in self.policy.model.state_dict().values()]))
            return step()

        flight.step = weighed
        return flight

"""Engine `openai`: samples from a server with OpenAI's protocol that serves the policy, or is evaluated in its place.

The policy's tokenizer makes the prompts and reads the answers; its weights are not used, but tell answers of other
weights apart where answers are kept.
"""

import hashlib
from typing import Any, Literal

from learning.api.client import ask
from learning.api.requests import COMPLETIONS, Answer, Failed, Question
from learning.api.spending import Desk
from learning.data.chat import turn_end
from learning.generation.weights.protocol import weights_of
from learning.models.checksum import checksum
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.endpoint import Endpoint
from schemas.errors import StepError

ASKED_FOR = {"logprobs": 1, "return_token_ids": True}
"""What servers that take token ids, as vLLM's does, are asked for beside the text."""


class Engine:
    """A server's model over a policy's tokenizer. The server keeps its own weights, so no policy is trained with it.

    `prompts` says how they are sent: `token_ids` (vLLM; answers come with their tokens and log-probabilities, processed
    if the server runs with `--logprobs-mode processed_logprobs`) or `text` (any server with `/v1/completions`).
    """

    charges = True
    """The server's bills say what samples cost; the step does not count them again."""
    continues = False
    """Whether it goes on from tokens of a completion that exist already."""

    def __init__(
        self, policy: Policy, desk: Desk, *, endpoint: Endpoint, prompts: Literal["token_ids", "text"] = "token_ids"
    ) -> None:
        self.policy, self.desk, self.endpoint, self.as_ids = policy, desk, endpoint, prompts == "token_ids"
        self.weights = ""

    def sync(self, version: int) -> None:
        """Raises StepError: a server's weights are not replaced from here."""
        raise StepError(
            "engine openai: the server keeps its own weights, so nothing can be trained with it; write `engine: vllm`"
        )

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """For each request its `n` generations. Raises StepError for what a server cannot do, and what it refuses."""
        check(requests, sampling)
        self.weights = self.weights or fingerprint(self.policy)
        questions = [self._question(r, i, sampling) for r in requests for i in range(r.n)]
        asked = ask(self.endpoint, self.desk, questions)
        found = iter([self._generation(answer) for answer in asked.answers])
        return [[next(found) for _ in range(request.n)] for request in requests]

    def _question(self, request: Request, number: int, sampling: Sampling) -> Question:
        ids = request.prompt_ids
        body: dict[str, Any] = {
            "prompt": list(ids) if self.as_ids else self.policy.tokenizer.decode(ids, skip_special_tokens=False),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature if request.temperature is None else request.temperature,
            "seed": seed_of(request.seed, request.first + number),
        }
        return Question(COMPLETIONS, body | (ASKED_FOR if self.as_ids else {}), about=self.weights)

    def _generation(self, answer: Answer | Failed | None) -> Generation:
        if not isinstance(answer, Answer):
            said = f"{answer.reason}: {answer.said}" if answer else "not asked"
            raise StepError(f"engine openai: a prompt has no completion: {said}")
        finish = "length" if answer.finish == "length" else "stop"
        if answer.token_ids is not None:
            known = answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
            return Generation(list(answer.token_ids), list(answer.logprobs or []) if known else [], finish)
        ids = self.policy.tokenizer.encode(answer.text, add_special_tokens=False)
        return Generation(ids + [turn_end(self.policy.tokenizer)] * (finish == "stop"), [], finish)


def check(requests: list[Request], sampling: Sampling) -> None:
    """Raise StepError for what cannot be asked of a server."""
    unable = {
        "completions that were begun": any(request.begun for request in requests),
        "`logits_processors`": sampling.processor is not None,
        "entropies": sampling.entropy,
        "stops inside a completion": bool(sampling.stop),
        "suspending": sampling.target is not None or sampling.window is not None,
    }
    if wanted := [what for what, asked in unable.items() if asked]:
        raise StepError(f"engine openai: a server cannot do this: {', '.join(wanted)}; write `engine: torch` or `vllm`")


def seed_of(seed: int, sample: int) -> int:
    """A seed of 31 bits, which every server takes, for a random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed} {sample}".encode()).digest()[:4], "big") >> 1


def fingerprint(policy: Policy) -> str:
    """Digest of a policy's weights."""
    sums = {name: checksum(tensor) for name, tensor in weights_of(policy.model).items()}
    return hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()

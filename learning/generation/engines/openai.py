"""Engine `openai`: sample from a server with OpenAI's protocol that serves the policy, or is evaluated instead of it.

The policy's tokenizer encodes the prompts and the answers. Its weights are not used, except as a part of the key under
which answers are stored.
"""

import hashlib
from typing import Any, Literal

from learning.api.client import ask
from learning.api.requests import COMPLETIONS, Answer, Failed, Question
from learning.api.spending import SpendingAccount
from learning.data.chat import find_turn_end
from learning.generation.weights.protocol import collect_weights
from learning.models.checksum import compute_checksum
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.endpoint import Endpoint
from schemas.errors import StepError

ASKED_FOR = {"logprobs": 1, "return_token_ids": True}
"""Fields that servers which take token ids, such as vLLM's, return in addition to the text."""


class Engine:
    """A server's model with a policy's tokenizer. The server keeps its own weights, so no policy is trained with it.

    `prompts` is the form in which they are sent: `token_ids` (vLLM; answers contain tokens and log-probabilities,
    processed if the server runs with `--logprobs-mode processed_logprobs`) or `text` (any server with
    `/v1/completions`).
    """

    charges = True
    """Samples are paid by the server's bill; the step does not count them again."""
    continues = False
    """Whether it continues a completion from existing tokens."""

    def __init__(
        self,
        policy: Policy,
        account: SpendingAccount,
        *,
        endpoint: Endpoint,
        prompts: Literal["token_ids", "text"] = "token_ids",
    ) -> None:
        self.policy, self.account, self.endpoint, self.as_ids = policy, account, endpoint, prompts == "token_ids"
        self.weights = ""

    def sync(self, version: int) -> None:
        """Raise StepError: a server's weights cannot be replaced."""
        raise StepError(
            "engine openai: the server keeps its own weights, so nothing can be trained with it; use `engine: vllm`"
        )

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return `n` generations of each request; raise StepError if the server cannot or does not answer."""
        check(requests, sampling)
        self.weights = self.weights or hash_weights(self.policy)
        questions = [self._question(r, i, sampling) for r in requests for i in range(r.n)]
        answers = ask(self.endpoint, self.account, questions).answers
        generations = iter([self._make_generation(answer) for answer in answers])
        return [[next(generations) for _ in range(request.n)] for request in requests]

    def _question(self, request: Request, number: int, sampling: Sampling) -> Question:
        ids = request.prompt_ids
        body: dict[str, Any] = {
            "prompt": list(ids) if self.as_ids else self.policy.tokenizer.decode(ids, skip_special_tokens=False),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature if request.temperature is None else request.temperature,
            "seed": derive_seed(request.seed, request.first + number),
        }
        return Question(COMPLETIONS, body | (ASKED_FOR if self.as_ids else {}), about=self.weights)

    def _make_generation(self, answer: Answer | Failed | None) -> Generation:
        if not isinstance(answer, Answer):
            reason = f"{answer.reason}: {answer.message}" if answer else "not asked"
            raise StepError(f"engine openai: a prompt has no completion: {reason}")
        finish = "length" if answer.finish == "length" else "stop"
        if answer.token_ids is not None:
            has_logprobs = answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
            return Generation(list(answer.token_ids), list(answer.logprobs or []) if has_logprobs else [], finish)
        ids = self.policy.tokenizer.encode(answer.text, add_special_tokens=False)
        return Generation(ids + [find_turn_end(self.policy.tokenizer)] * (finish == "stop"), [], finish)


def check(requests: list[Request], sampling: Sampling) -> None:
    """Raise StepError if requests need a feature that a server does not have."""
    unsupported = {
        "completions that were begun": any(request.begun for request in requests),
        "`logits_processors`": sampling.processor is not None,
        "`kept_tokens`": sampling.kept_tokens is not None,
        "entropies": sampling.entropy,
        "stops inside a completion": bool(sampling.stop),
        "suspending": sampling.target is not None or sampling.window is not None,
    }
    if needed := [feature for feature, is_needed in unsupported.items() if is_needed]:
        raise StepError(f"engine openai: a server does not support {', '.join(needed)}; use `engine: torch` or `vllm`")


def derive_seed(seed: int, sample: int) -> int:
    """Return a seed of 31 bits, which every server accepts, for a random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed} {sample}".encode()).digest()[:4], "big") >> 1


def hash_weights(policy: Policy) -> str:
    """Return a digest of a policy's weights."""
    sums = {name: compute_checksum(tensor) for name, tensor in collect_weights(policy.model).items()}
    return hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()

"""Whether there is room for what a request asks, the same words from every engine."""

from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError


def check_room(request: Request, sampling: Sampling, *, engine: str, length: int, longer: str = "") -> None:
    """Raise StepError for an empty prompt, one too long, nothing left to sample, or an empty stop sequence.

    `length` is the longest sequence that the engine holds, and `longer` what could be done to make it hold more.
    """
    most, begun = sampling.max_new_tokens, len(request.begun)
    if not 1 <= len(request.prompt_ids) <= length - most:
        ways = ["lower max_completion_length", "drop long prompts (and empty ones) in a curate stage", longer]
        *first, last = filter(None, ways)
        raise StepError(
            f"engine {engine}: a prompt of {len(request.prompt_ids)} tokens and a completion of up to {most} do not "
            f"fit its {length}; {', '.join(first)} or {last}"
        )
    if begun >= most:
        raise StepError(
            f"engine {engine}: {begun} tokens of a completion exist, of {most} at most: nothing is left to sample; "
            "was max_completion_length lowered in between?"
        )
    if not all(sampling.stop):
        raise StepError(f"engine {engine}: a stop sequence is empty")

"""Check that a request fits into an engine's context, with the same errors for every engine."""

from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError


def check_room(request: Request, sampling: Sampling, *, engine: str, length: int, longer: str = "") -> None:
    """Raise StepError if a prompt is empty or too long, nothing is left to sample, or a stop sequence is empty.

    `length` is the longest sequence of the engine in tokens, and `longer` an advice how to raise it.
    """
    most, begun = sampling.max_new_tokens, len(request.begun)
    if not 1 <= len(request.prompt_ids) <= length - most:
        remedies = ["lower max_completion_length", "drop long prompts (and empty ones) in a curate stage", longer]
        *first, last = filter(None, remedies)
        raise StepError(
            f"engine {engine}: a prompt of {len(request.prompt_ids)} tokens and a completion of up to {most} do not "
            f"fit its {length}; {', '.join(first)} or {last}"
        )
    if begun >= most:
        raise StepError(
            f"engine {engine}: {begun} tokens of a completion exist, of {most} at most: nothing is left to sample; "
            "set max_completion_length to its value when the completion began"
        )
    if not all(sampling.stop):
        raise StepError(f"engine {engine}: a stop sequence is empty")

"""Wrap an engine so that its completions are episodes in the environment that a recipe names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learning.environments.clock import VirtualClock
from learning.environments.episodes import Episodes
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import EnvUse


def wrap_in_environment(
    engine: Any,
    use: EnvUse | None,
    tokenizer: Any,
    inputs: Mapping[str, Path],
    max_length: int | None = None,
    port: str = "env",
) -> Any:
    """Return an engine, or a source of completions, whose completions are episodes; the engine itself without `env`.

    `max_length` is the most tokens of a sequence of the model; `port` is the environment's place in the stage. Raise
    StepError if the engine cannot continue a completion.
    """
    if use is None:
        return engine
    if not getattr(engine, "continues", True):
        raise StepError(f"{port}: the engine's server cannot continue given tokens; use `engine: torch` or `vllm`")
    decode = use.decode_seconds
    return Episodes(
        engine,
        build_environment(use, inputs, port),
        tokenizer=tokenizer,
        max_turns=use.max_turns,
        workers=use.workers,
        order=use.order,
        steps_per_answer=use.steps_per_answer if decode is None else None,
        clock=None if decode is None else VirtualClock(decode_s=decode, workers=use.workers),
        context=None if use.context is None else bind(use.context, f"{port}.context", inputs),
        max_length=max_length,
        inline=use.inline,
    )


@contextmanager
def open_environment(
    engine: Any,
    use: EnvUse | None,
    tokenizer: Any,
    inputs: Mapping[str, Path],
    max_length: int | None = None,
    port: str = "env",
) -> Iterator[Any]:
    """Provide a wrapped engine; at the end waiting steps are cancelled, but the engine is not closed."""
    wrapped = wrap_in_environment(engine, use, tokenizer, inputs, max_length, port)
    try:
        yield wrapped
    finally:
        if wrapped is not engine:
            wrapped.clock.close()

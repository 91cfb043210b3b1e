"""From the name of an environment in a recipe to an engine whose completions are episodes in it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learning.environments.clock import VirtualClock
from learning.environments.episodes import Episodes
from learning.environments.lookup_environment import build_environment
from schemas.errors import StepError
from schemas.use import EnvUse


def wrap_in_environment(engine: Any, use: EnvUse | None, tokenizer: Any, inputs: Mapping[str, Path]) -> Any:
    """An engine, or a source of completions, whose completions are episodes; the engine itself without `env`.

    Raises StepError for an engine that cannot go on after an answer.
    """
    if use is None:
        return engine
    if not getattr(engine, "continues", True):
        raise StepError("env: the engine's server cannot go on from given tokens; write `engine: torch` or `vllm`")
    how: dict[str, Any] = {"max_turns": use.max_turns, "workers": use.workers, "order": use.order}
    if use.decode_seconds is None:
        how["steps_per_answer"] = use.steps_per_answer
    else:
        how["clock"] = VirtualClock(decode_s=use.decode_seconds, workers=use.workers)
    return Episodes(engine, build_environment(use, inputs), tokenizer=tokenizer, **how)


@contextmanager
def open_environment(engine: Any, use: EnvUse | None, tokenizer: Any, inputs: Mapping[str, Path]) -> Iterator[Any]:
    """The same for a while: steps that nobody waits for any more are not begun; the engine is its maker's to end."""
    made = wrap_in_environment(engine, use, tokenizer, inputs)
    try:
        yield made
    finally:
        if made is not engine:
            made.clock.close()

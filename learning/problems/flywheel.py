"""Data flywheel: episodes of a model, graded by their environment and routed to the data of its next training.

A trace is a row of type chat whose completion has the model's turns and the environment's answers.
"""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.chat import decode, encode_prompt
from learning.data.rows import Row, read_metadata, read_rows, write_rows
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode
from learning.generation.engines.torch import Engine
from learning.models.policy import load_policy, set_determinism
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from schemas.use import EnvUse


@dataclass
class Trace:
    """An episode that is being played."""

    row: Row
    episode: Episode
    number: int
    messages: list[Row] = field(default_factory=list)
    earned: float = 0.0
    done: bool = False

    def to_row(self) -> Row:
        """Return it as a row of type chat, up to the model's last turn, with what it earned."""
        said = self.messages[: 1 + max(i for i, one in enumerate(self.messages) if one["role"] == "assistant")]
        about = read_metadata(self.row) | {"reward": self.earned}
        return self.row | {
            "id": f"{self.row['id']}.{self.number}",
            "completion": said,
            "metadata": json.dumps(about),
        }


def play_and_route(
    context: Any,
    *,
    env: EnvUse,
    n: Annotated[int, Field(ge=1)] = 1,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
    at_least: float = 1.0,
) -> dict[str, float]:
    """Let the input `model` play every problem of the input `prompts` `n` times, and route what it did by its rewards.

    For a stage of kind `python`. Episodes that earn `at_least` are the output `passed`, for imitation; the others are
    the output `failed`, a lower tier, as in the flywheel of UI-TARS-2 (2025). Neither output is empty: if
    no episode passes the best one counts as passed, if none fails the worst one as failed. `max_completion_length`
    limits a turn. Metrics: `traces` and `solved`, the share that passes. Raise StepError if a problem does not fit into
    the model's context.
    """
    set_determinism(context.seed, context.num_threads)
    policy, world = load_policy(context.input("model"), device=context.device), build_environment(env, {})
    engine, sampling = Engine(policy), Sampling(temperature, max_completion_length)
    rows = [row for row in read_rows(context.input("prompts"), "prompts") for _ in range(n)]
    traces = [Trace(row, world.begin(row, derive_seed(context.seed, i)), i) for i, row in enumerate(rows)]
    for turn in range(env.max_turns):
        prompts = [(t, encode_prompt(policy.tokenizer, [*t.row["prompt"], *t.messages], t.row)) for t in traces]
        open_ = [(t, ids) for t, ids in prompts if not t.done and len(ids) + max_completion_length <= policy.max_length]
        if not open_:
            break
        asked = [Request(ids, 1, derive_seed(context.seed, trace.number, turn)) for trace, ids in open_]
        for (trace, _), (made,) in zip(open_, engine.generate(asked, sampling), strict=True):
            play_turn(trace, decode(policy.tokenizer, made.token_ids))
    if short := [trace.row["id"] for trace in traces if not trace.messages]:
        raise StepError(f"play_and_route: problem {short[0]} and a turn of {max_completion_length} tokens are too long")
    passed, failed = route(traces, at_least)
    for name, chosen in (("passed", passed), ("failed", failed)):
        write_rows(context.output(name), "chat", [trace.to_row() for trace in chosen])
    return {"traces": len(traces), "solved": sum(t.earned >= at_least for t in traces) / len(traces)}


def derive_seed(*places: int) -> int:
    """Return the seed of a random stream; no two places share one."""
    return int(np.random.SeedSequence(places).generate_state(1, np.uint64)[0] >> np.uint64(1))


def play_turn(trace: Trace, text: str) -> None:
    """Add a turn of the model and the environment's answer."""
    outcome = trace.episode.step(text)
    trace.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": outcome.observation}]
    trace.earned, trace.done = trace.earned + outcome.reward, outcome.done


def route(traces: list[Trace], at_least: float) -> tuple[list[Trace], list[Trace]]:
    """Return the traces that earn enough and the others; the best or the worst one, where there would be none."""
    passed = [trace for trace in traces if trace.earned >= at_least]
    failed = [trace for trace in traces if trace.earned < at_least]
    order = sorted(traces, key=lambda trace: trace.earned)
    return passed or order[-1:], failed or order[:1]

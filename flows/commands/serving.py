"""The command that serves a model, also beside a challenger."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import console
from schemas.errors import PlanError

if TYPE_CHECKING:
    from flows.serving.canary import CanaryOptions
    from flows.serving.models import Chosen
    from lineage.layout import Layout


class EngineChoice(enum.StrEnum):
    """Inference engine."""

    torch = "torch"
    vllm = "vllm"


class Precision(enum.StrEnum):
    """Precision of the weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Model = Annotated[str, typer.Argument(help="mlflow:NAME@champion, a step, a key, a folder, or a source.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0: any free one.")]
Engine = Annotated[EngineChoice, typer.Option(help="`vllm` starts vLLM's own server.")]
Name = Annotated[str | None, typer.Option(help="Model name for clients; default: NAME, the step or the folder.")]
Follow = Annotated[bool, typer.Option("--follow", help="Switch to a new champion when there is one.")]
MaxSlots = Annotated[int, typer.Option(min=1, help="Completions sampled at a time.")]
MaxLength = Annotated[
    int | None, typer.Option(min=2, help="Tokens of prompt and completion; default: the model's, at most 4096.")
]
Dtype = Annotated[Precision | None, typer.Option(help="Default: float32, and bfloat16 on a GPU.")]
MaxQueue = Annotated[int, typer.Option(min=1, help="Requests running or queued; further ones get status 429.")]
Seconds = Annotated[float, typer.Option(min=1, help="Seconds for a whole answer, including the queue.")]
Hosts = Annotated[
    list[str], typer.Option(metavar="NAME", help="Another host name that clients use, such as a proxy's; repeatable.")
]
TokenEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment variable with the token that clients must send; default: POSTTRAIN_SERVE_TOKEN.",
    ),
]
RequestLog = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a line of JSON per request, without contents.")
]
CanaryShare = Annotated[
    str | None,
    typer.Option("--canary", metavar="SHARE", help="Share of the clients that the challenger answers, such as 10%."),
]
Challenger = Annotated[
    str | None, typer.Option(metavar="MODEL", help="With --canary: a step, a key or mlflow:NAME@N to try.")
]
Gate = Annotated[
    str | None,
    typer.Option(
        metavar="STEP",
        help="With --canary: an evaluation whose gates the challenger passed; a canary that passes promotes.",
    ),
]
MinSamples = Annotated[
    int, typer.Option(min=20, help="With --canary: clients with feedback on each model before the first look.")
]
MinDelta = Annotated[
    float,
    typer.Option(
        min=-1,
        max=1,
        help="With --canary: passes if the difference of scores is proven to reach this, stops if not to.",
    ),
]
Confidence = Annotated[
    float, typer.Option(min=0.5, max=0.9999, help="With --canary: level of the interval, over all looks together.")
]


@dataclass(frozen=True)
class CanaryWords:
    """The options of a canary as given."""

    share: str | None
    challenger: str | None
    gate: str | None
    min_samples: int
    min_delta: float
    confidence: float


def _print_at_once(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.file.flush()


def serve(
    model: Model,
    port: Port = 8000,
    engine: Engine = EngineChoice.torch,
    name: Name = None,
    follow: Follow = False,
    max_slots: MaxSlots = 32,
    max_length: MaxLength = None,
    dtype: Dtype = None,
    max_queue: MaxQueue = 128,
    timeout: Seconds = 600.0,
    host: Hosts = [],  # noqa: B006
    token_env: TokenEnv = None,
    request_log: RequestLog = None,
    canary: CanaryShare = None,
    challenger: Challenger = None,
    gate: Gate = None,
    min_samples: MinSamples = 100,
    min_delta: MinDelta = 0.0,
    confidence: Confidence = 0.95,
) -> None:
    """Serve a model with an OpenAI-compatible API on 127.0.0.1 until Ctrl-C."""
    from flows.serving.models import choose
    from flows.serving.rules import read_rules
    from lineage.layout import Layout

    rules = read_rules(host, token_env, max_queue, timeout)
    layout = Layout.find()
    chosen = choose(model, layout, name)
    for alarm in chosen.alarms:
        console.print(f"ALARM {alarm}", highlight=False, markup=False, soft_wrap=True)
    if follow and (chosen.alias is None or engine is EngineChoice.vllm):
        raise PlanError("--follow is for mlflow:NAME@champion with the torch engine: nothing else moves")
    if engine is EngineChoice.vllm and (request_log or canary):
        raise PlanError("--request-log and --canary are for the torch engine; vLLM prints a log of its own")
    words = CanaryWords(canary, challenger, gate, min_samples, min_delta, confidence)
    limits = {"max_slots": max_slots, "max_length": max_length}
    precision = dtype.value if dtype else None
    if engine is EngineChoice.vllm:
        from flows.serving.vllm import replace_process

        replace_process(chosen, rules, port=port, dtype=precision, **limits)
    from flows.serving.current import Limits
    from flows.serving.server import serve

    options = {"port": port, "dtype": precision, "follow": follow, "say": _print_at_once, "request_log": request_log}
    options["canary"] = _read_canary(words, chosen, layout)
    raise typer.Exit(serve(chosen, layout, Limits(**limits), rules, **options))


def _read_canary(words: CanaryWords, champion: "Chosen", layout: "Layout") -> "CanaryOptions | None":
    """Return the canary to run, None if none is asked for. Raise PlanError or GateError for one that cannot be."""
    if words.share is None:
        if words.challenger or words.gate:
            raise PlanError("--challenger and --gate need --canary SHARE, such as --canary 10%")
        return None
    if words.challenger is None:
        raise PlanError("--canary needs the model to try: --challenger STEP, a key or mlflow:NAME@N")
    from flows.serving.canary import CanaryOptions, check_canary
    from flows.serving.canary_gate import CanaryGate, read_share
    from flows.serving.models import choose

    gate = CanaryGate(words.min_samples, words.min_delta, words.confidence)
    share = read_share(words.share)
    options = CanaryOptions(share, choose(words.challenger, layout), gate, words.gate)
    check_canary(champion, options, layout)
    return options

"""Commands about champions: promote a model that passed its gates, roll back, list, serve."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, console
from schemas.errors import PlanError

Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered model.")]


def promote(
    model: Annotated[str, typer.Argument(help="A step or key of a finished model.")],
    gate: Annotated[str, typer.Option(help="A step or key of an evaluation whose gates the model passed.")],
    name: Annotated[str, typer.Option(help="The registered model whose champion it becomes.")],
    approve_override: Annotated[
        bool, typer.Option("--approve-override", help="Approve a gate that differs from the committed recipe's.")
    ] = False,
    why: Annotated[str, typer.Option(help="With --approve-override: the reason, recorded in the history.")] = "",
    who: Annotated[
        str | None,
        typer.Option(help="Person who answers, a claim of the account; default: POSTTRAIN_USER, or the account."),
    ] = None,
) -> None:
    """Make a model champion; an earlier evaluation whose gates it passed is required."""
    from flows.champions.promotion import promote_step
    from lineage.layout import Layout

    message = promote_step(Layout.find(), model, gate, name, approve=approve_override, who=who, why=why)
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def rollback(
    name: Name,
    to: Annotated[int | None, typer.Option(min=1, help="A version that was champion; default: the one before.")] = None,
    why: Annotated[str, typer.Option(help="Reason, recorded in the history.")] = "",
) -> None:
    """Undo the latest promotion: the previous champion becomes champion again."""
    from lineage.layout import Layout
    from lineage.registry.rollback import roll_back

    before, after = roll_back(Layout.find(), name, to, why)
    message = f"champion of {name}: version {before.version} → version {after.version} ({after.key[:12]})"
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def champions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show how its champion moved.")] = None,
    as_json: AsJson = False,
    restore: Annotated[bool, typer.Option("--restore", help="Restore MLflow from the audit log.")] = False,
) -> None:
    """Show every champion with time and gate of its promotion, or the history of one; exit code 1 on an alarm."""
    from flows.champions.tables import show_champions, show_history
    from lineage.layout import Layout

    layout = Layout.find()
    if restore:
        from lineage.registry.rollback import restore_registry as write_again

        if name is None:
            raise PlanError("--restore needs a name: posttrain champions NAME --restore")
        for line in write_again(layout, name):
            console.print(f"put right: {line}", highlight=False, markup=False, soft_wrap=True)
    code = show_champions(layout, console, as_json) if name is None else show_history(layout, name, console, as_json)
    if code:
        raise typer.Exit(code)


def _print_at_once(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.file.flush()


class EngineChoice(enum.StrEnum):
    """Inference engine."""

    torch = "torch"
    vllm = "vllm"


class Precision(enum.StrEnum):
    """Precision of the weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def serve(
    model: Annotated[str, typer.Argument(help="mlflow:NAME@champion, a step, a key, a folder, or a source.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0: any free one.")] = 8000,
    engine: Annotated[EngineChoice, typer.Option(help="`vllm` starts vLLM's own server.")] = EngineChoice.torch,
    name: Annotated[
        str | None, typer.Option(help="Model name for clients; default: NAME, the step or the folder.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Switch to a new champion when there is one.")] = False,
    max_slots: Annotated[int, typer.Option(min=1, help="Completions sampled at a time.")] = 32,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and completion; default: the model's, at most 4096.")
    ] = None,
    dtype: Annotated[Precision | None, typer.Option(help="Default: float32, and bfloat16 on a GPU.")] = None,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Requests running or queued; further ones get status 429.")
    ] = 128,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for a whole answer, including the queue.")] = 600.0,
    host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Another host name that clients use, such as a proxy's; repeatable."),
    ] = [],  # noqa: B006
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the token that clients must send; default: POSTTRAIN_SERVE_TOKEN.",
        ),
    ] = None,
    request_log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a line of JSON per request, without contents.")
    ] = None,
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
    limits = {"max_slots": max_slots, "max_length": max_length}
    precision = dtype.value if dtype else None
    if request_log is not None and engine is EngineChoice.vllm:
        raise PlanError("--request-log is for the torch engine; vLLM prints its own")
    if engine is EngineChoice.vllm:
        from flows.serving.vllm import replace_process

        replace_process(chosen, rules, port=port, dtype=precision, **limits)
    from flows.serving.current import Limits
    from flows.serving.server import serve

    options = {"port": port, "dtype": precision, "follow": follow, "say": _print_at_once, "request_log": request_log}
    raise typer.Exit(serve(chosen, layout, Limits(**limits), rules, **options))

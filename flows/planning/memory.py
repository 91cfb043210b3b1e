"""Predict the memory of a plan by step and role, next to what was requested and what a GPU has."""

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_lengths import Lengths, PlanRows
from flows.planning.memory_models import KnownModel, PlanModels
from learning.memory_model.estimate import Place
from learning.memory_model.forward import Forward
from lineage.layout import Layout
from schemas.errors import PlanError, StepError
from schemas.package import import_path
from schemas.plan import Plan, Step
from schemas.resources import MEMORY, parse_memory
from schemas.stages.union import traits_of

SHORT = {"gradients": "grads", "optimizer": "optim.", "activations": "activ.", "other models": "others"}
"""Headings that leave room for numbers."""
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "cache", "other models")
"""Columns; what a phase holds under other names is shown as working memory."""
TRAINS = ("sft", "preference", "reward_model", "process_reward_model", "rl")
"""Kinds whose forward passes `learning.models.packed` chooses."""
GIB = 2**30
PROCESS = GIB
"""Bytes that Python takes with torch, transformers and what they load, besides tensors."""


@dataclass(frozen=True)
class StepMemory:
    """The places of one step, or why they are unknown; a step without models has neither."""

    step: str
    places: tuple[Place, ...] = ()
    unknown: str = ""
    forward: str = ""
    """The forward pass that a step that trains is expected to use; empty for others."""
    assumed_prompt: int = 0
    """Tokens of a prompt that the sizes of caches assume, as none were given or known; 0: no assumption."""
    lengths: Lengths | None = None
    """Lengths of the rows that the estimate is for; None where they are not known before a run."""
    traced: bool = False
    """Whether a model has no formula of its own: sizes are those of a pass of transformers' own forward."""


def show_memory(
    plan: Plan, layout: Layout, console: Console, *, gpu: str | None, prompt: int | None, as_json: bool
) -> None:
    """Print the memory table, or JSON. Raise PlanError if `gpu` is not a size."""
    if gpu is not None and not re.fullmatch(MEMORY, gpu):
        raise PlanError(f"--gpu-memory: {gpu!r} is not a size; write it as 80GB or 40GiB")
    limit = parse_memory(gpu) or None
    steps = estimate_memory(plan, layout, gpu=limit, prompt=prompt)
    if as_json:
        print(json.dumps(memory_as_json(plan, steps, limit), indent=2))
    else:
        console.print(make_memory_table(plan, steps, limit))


def estimate_memory(
    plan: Plan, layout: Layout, *, gpu: int | None = None, prompt: int | None = None
) -> list[StepMemory]:
    """Return the memory of every step; `gpu`: bytes of one GPU, `prompt`: tokens of the longest prompt."""
    models, rows = PlanModels(plan, layout), PlanRows(plan, layout)
    return [_estimate_step_memory(step, models, rows, gpu, prompt) for step in plan.steps]


def _estimate_step_memory(
    step: Step, models: PlanModels, rows: PlanRows, gpu: int | None, prompt: int | None
) -> StepMemory:
    estimate = find_estimate(step.kind)
    if estimate is None:
        return StepMemory(step.name)
    ports = dict(models.ports(step))
    if traits_of(step.kind).defines_model:
        ports["made"] = next(iter(models.made[step.name].values()))
    trained = ports.get("model")
    forward = trained.forward if step.kind in TRAINS and isinstance(trained, KnownModel) else ""
    known = [model for model in ports.values() if isinstance(model, KnownModel)]
    lengths = rows.measure(step, known[0]) if known else None
    demand = StepDemand(step.settings, step.resources, ports, gpu, prompt, lengths)
    if forward == "forest" and demand.trainer.num_gpus:
        forward = "forest, varlen for large batches"
    try:
        places = tuple(estimate(demand))
        caches = any(phase.parts.get("cache") for place in places for phase in place.phases)
        assumes = caches and prompt is None and lengths is None
        traced = any(model.pass_type is not Forward for model in known)
        assumed = max(map(demand.prompt_tokens, known), default=0) if assumes else 0
        return StepMemory(step.name, places, forward=forward, assumed_prompt=assumed, lengths=lengths, traced=traced)
    except StepError as error:
        return StepMemory(step.name, unknown=str(error))


def find_estimate(kind: str) -> Callable[[StepDemand], list[Place]] | None:
    """Return `estimate` of a kind's module in `flows/planning/memory_kinds`; None if the kind has none."""
    name = f"flows.planning.memory_kinds.{kind}"
    if importlib.util.find_spec(import_path(name)) is None:
        return None
    return importlib.import_module(import_path(name)).estimate


def list_warnings(plan: Plan, steps: list[StepMemory], gpu: int | None = None) -> Iterator[str]:
    """Yield places that exceed the `memory` they reserve, or the memory of a GPU."""
    for need in steps:
        resources = plan.step(need.step).resources
        for place in need.places:
            role = getattr(resources, place.role, None) or resources
            limits = {"its `memory`": parse_memory(role.memory)} if not role.num_gpus else {"a GPU": gpu or 0}
            needed = place.peak.total if role.num_gpus else _whole(place)
            for name, limit in limits.items():
                if limit and needed > limit:
                    yield (
                        f"{need.step}: {place.role} needs {format_size(needed)} at its worst moment "
                        f"({place.peak.name}), {name} has {format_size(limit)}; {advise(place)}"
                    )


def advise(place: Place) -> str:
    """Return how to make the largest part of a place smaller."""
    part = max(place.peak.parts, key=lambda name: place.peak.parts[name])
    return {
        "weights": "spread it over more workers (train: {strategy: fsdp2}), or use dtype: bfloat16",
        "gradients": "train: {strategy: fsdp2} spreads it, use_peft trains less",
        "optimizer": "train: {strategy: fsdp2} spreads it, use_peft trains less",
        "activations": "lower the tokens of a pass (per_device_train_batch_size, max_tokens_per_micro_batch), or set "
        "gradient_checkpointing",
        "logits": "lower the tokens of a pass",
        "cache": "lower max_slots (torch) or kv_cache_gib and gpu_memory_utilization (vllm), or give rollout workers",
        "other models": "give `reference`, `reward` or `rollout` processes of their own",
    }.get(part, "lower the tokens of a pass")


def make_memory_table(plan: Plan, steps: list[StepMemory], gpu: int | None = None) -> Table:
    """Return a table with one row per place: the parts of its peak, and what was reserved."""
    caption = (
        "peak: tensors at the worst moment. process: with about 1 GiB for Python and its libraries; "
        "a CUDA context takes 0.5 GiB of a GPU."
    )
    caption = "\n".join(
        [
            caption,
            *describe_forwards(steps),
            *describe_traced(steps),
            *describe_lengths(steps),
            *describe_prompts(steps),
            *list_warnings(plan, steps, gpu),
        ]
    )
    table = Table(
        title=f"Memory of {plan.recipe}",
        caption=caption,
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for column in ("step", "role", *PARTS, "work", "peak", "process", "when", "reserved"):
        number = column in (*PARTS, "work", "peak", "process")
        heading = SHORT.get(column, column)
        table.add_column(
            heading, overflow="fold", no_wrap=column in ("step", "role"), justify="right" if number else "left"
        )
    for need in steps:
        resources = plan.step(need.step).resources
        if need.unknown:
            table.add_row(need.step, "", *[""] * 8, "unknown", "", Text(need.unknown), "")
        for place in need.places:
            parts = place.peak.parts
            shown = [format_size(parts.get(name, 0)) for name in PARTS]
            work = sum(amount for name, amount in parts.items() if name not in PARTS)
            role = getattr(resources, place.role, None) or resources
            name = place.role if place.workers == 1 else f"{place.role} x {place.workers}"
            total, process = format_size(place.peak.total), "" if role.num_gpus else format_size(_whole(place))
            sizes = (format_size(work), total, Text(process, style="bold"))
            table.add_row(need.step, name, *shown, *sizes, place.peak.name, role.memory or "")
    return table


def _whole(place: Place) -> int:
    """Return the bytes of a process on a CPU."""
    return place.peak.total + PROCESS


def describe_forwards(steps: list[StepMemory]) -> Iterator[str]:
    """Yield the expected forward passes with the steps that use them."""
    for forward in sorted({need.forward for need in steps if need.forward}):
        names = ", ".join(need.step for need in steps if need.forward == forward)
        yield f"Expected forward of {names}: {forward}; a check on the weights decides."


def describe_traced(steps: list[StepMemory]) -> Iterator[str]:
    """Yield the steps whose sizes no formula gives, and how unsure they are."""
    if names := ", ".join(need.step for need in steps if need.traced):
        yield (
            f"{names}: architectures without a formula. Weights, gradients and optimizer are exact; activations and "
            "cache are those of transformers' own forward, counted without data: about 30 % unsure."
        )


def describe_lengths(steps: list[StepMemory]) -> Iterator[str]:
    """Yield the lengths of the rows that steps are estimated for, where the rows are known."""
    known = [f"{one.step} {one.lengths.row:,}" for one in steps if one.lengths and one.places]
    if known:
        yield f"Tokens of the longest row, as the rows are now: {', '.join(known)}."


def describe_prompts(steps: list[StepMemory]) -> Iterator[str]:
    """Yield the lengths of prompts that caches are estimated for, with the steps, where none was given."""
    for tokens in sorted({need.assumed_prompt for need in steps if need.assumed_prompt}):
        names = ", ".join(need.step for need in steps if need.assumed_prompt == tokens)
        yield (
            f"Prompts of {names} are assumed to have {tokens:,} tokens, all that the model holds besides a completion; "
            "give the length of yours with --prompt-length."
        )


def format_size(number: int) -> str:
    """Return bytes as text."""
    if not number:
        return "-"
    for unit, name in ((GIB, "GiB"), (2**20, "MiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}" if number < 100 * unit else f"{number / unit:.0f} {name}"
    return f"{max(1, number // 1024)} KiB"


def memory_as_json(plan: Plan, steps: list[StepMemory], gpu: int | None = None) -> dict[str, object]:
    """Return the same for programs, in bytes."""
    return {
        "recipe": plan.recipe,
        "steps": [_step_as_json(need) for need in steps],
        "warnings": [*list_warnings(plan, steps, gpu)],
    }


def _step_as_json(need: StepMemory) -> dict[str, object]:
    return {
        "step": need.step,
        **({"unknown": need.unknown} if need.unknown else {}),
        **({"forward": need.forward} if need.forward else {}),
        **({"traced": True} if need.traced else {}),
        **({"assumed_prompt_tokens": need.assumed_prompt} if need.assumed_prompt else {}),
        **({"longest_row_tokens": need.lengths.row} if need.lengths else {}),
        "places": [
            {
                "role": place.role,
                "workers": place.workers,
                "peak": place.peak.total,
                "process": _whole(place),
                "when": place.peak.name,
                "phases": {phase.name: dict(phase.parts) for phase in place.phases},
            }
            for place in need.places
        ],
    }

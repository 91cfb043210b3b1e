"""What the importer of a tool works on, and the steps that several tools share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.base import JsonObject
from schemas.data_slices import parse_split
from schemas.importers.common.draft import Draft, Line, StageDraft
from schemas.importers.common.leaves import Leaves
from schemas.importers.common.references import Places, refer
from schemas.importers.common.values import flag, number, whole
from schemas.source.tree import Mark, make_error
from schemas.stages.union import KINDS
from schemas.training import Evaluation

Source = JsonObject
"""A source of rows, as a recipe writes it."""


@dataclass(frozen=True)
class Tool:
    """A tool whose configurations can be imported."""

    name: str
    title: str
    known: frozenset[str]
    """Dotted keys that it knows; `*` is any key or number, `**` everything below."""
    marks: tuple[str, ...]
    """Keys that only this tool has, by which a configuration is recognised."""
    convert: Callable[["Job"], None]
    commands: tuple[str, ...] = ()
    """Words of a command line by which it is recognised."""
    harmless: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One import."""

    leaves: Leaves
    draft: Draft
    places: Places
    devices: int
    words: tuple[str, ...]
    """Words of the command line before its options; for TRL also the trainer that was named."""
    infos: Mapping[str, Any]
    """LLaMA-Factory's dataset_info.json."""

    def fail(self, key: str, message: str, advice: str) -> Exception:
        """Return the error of a configuration from which no recipe can be made."""
        return make_error(Mark(self.leaves.file, 1, 1), key, message, advice)


def map_model(job: Job, stage: StageDraft, key: str, revision: str = "") -> None:
    """Take over the model. Raise RecipeError if the input names none."""
    name = job.leaves.get(key)
    if name is None:
        raise job.fail(key, "the configuration names no model", f"add `{key}: org/name`")
    try:
        reference = refer(name, job.places, job.leaves.get(revision) if revision else None)
    except ValueError as error:
        raise job.fail(key, str(error), "name a folder or a model of the hub") from None
    stage.put("model", reference, key)
    job.leaves.mapped(key, f"{stage.name}.model", reference)
    if revision:
        if job.leaves.get(revision) in (None, "", "main"):
            job.leaves.harmless(revision, "is the default")
        job.leaves.account(revision, "mapped", f"{stage.name}.model: {reference}")


def map_seed(job: Job, key: str, default: int | None) -> None:
    """Take over the seed of the run."""
    given = job.leaves.get(key)
    try:
        seed = default if given is None else whole(given)
    except ValueError as error:
        job.leaves.account(key, "not supported", f"{error}; set `seed`")
        return
    if given is not None:
        job.leaves.mapped(key, "seed")
        job.draft.seed = Line(seed, key)
    elif seed:
        job.leaves.state_default(key, seed, f"0; the recipe says seed: {seed}")
        job.draft.seed = Line(seed, f"default of {key}")


def map_reporting(stage: StageDraft, names: Mapping[str, str] | None = None) -> None:
    """Take over intervals of checkpoints and curves, and recomputation of activations."""
    names = {"save": "save_steps", "log": "logging_steps", "recompute": "gradient_checkpointing", **(names or {})}
    for key, ours in ((names["save"], "save_steps"), (names["log"], "logging_steps")):
        value = stage.leaves.get(key)
        try:
            steps = 0.0 if value is None else number(value)
        except ValueError:
            steps = 0.0
        if 0 < steps < 1:
            stage.leaves.account(key, "not supported", f"a share of all steps; set {ours} to a number of steps")
        elif value is not None and steps >= 1:
            stage.copy(key, ours, whole)
        else:
            stage.leaves.harmless(key, "no interval: the default")
    stage.copy(names["recompute"], "gradient_checkpointing", _read_recomputation)


def _read_recomputation(value: Any) -> bool:
    if value in ("unsloth", "offload", "offload_disk"):
        return True
    return flag(value)


def map_evaluation(job: Job, stage: StageDraft, share: str, steps: str = "eval_steps", patience: str = "") -> None:
    """Take over the share of rows that is held out, the interval of evaluations, and what depends on them."""
    leaves = stage.leaves
    value = leaves.get(share)
    try:
        held = 0.0 if value is None else number(value)
    except ValueError:
        held = 0.0
    if held >= 1 and (rows := count_rows(job, stage.get("data"))) and held < rows:
        stage.put("validation_fraction", float(f"{held / rows:.6g}"), f"{share}: {held:g} of {rows} rows")
        leaves.mapped(share, f"{stage.name}.validation_fraction", f"{held:g} of {rows} rows")
    elif held >= 1:
        advice = f"a number of rows: set stages.{stage.name}.validation_fraction to {held:g} / rows of the data"
        leaves.account(share, "not supported", advice)
    elif held > 0:
        stage.copy(share, "validation_fraction", number)
    else:
        leaves.harmless(share, "nothing is held out")
        own = type_default(stage, "validation_fraction")
        if own and stage.kind == "preference":
            stage.put("validation_fraction", 0.0, f"no {share}")
        elif own and "validation" not in stage.lines:
            leaves.state_default(share, 0, f"{own}: a reward model is measured on held-out pairs")
    held_out = "validation" in stage.lines or bool(
        stage.get("validation_fraction", type_default(stage, "validation_fraction"))
    )
    every = leaves.get(steps)
    if held_out and every is not None and str(every).replace(".", "", 1).isdigit() and float(every) >= 1:
        stage.copy(steps, "eval_steps", whole)
    for key in (steps, "eval_strategy", "evaluation_strategy", "evals_per_epoch", "do_eval"):
        why = "`eval_steps` sets the interval; without it there is one evaluation at the end"
        leaves.harmless(key, why if held_out else "nothing is held out; `validation_fraction` would")
    if "eval_steps" in stage.lines:
        if patience:
            stage.copy(patience, "early_stopping_patience", whole)
        stage.copy("load_best_model_at_end", "load_best_model_at_end", flag)
        if stage.get("load_best_model_at_end") or stage.get("early_stopping_patience"):
            map_best_metric(stage)
    else:
        for key in ("load_best_model_at_end", *([patience] if patience else [])):
            leaves.unsupported(key, "needs `validation_fraction` and `eval_steps`")


def map_best_metric(stage: StageDraft) -> None:
    """Take over the metric that evaluations are compared by, and its direction."""
    kind, leaves = KINDS[stage.kind], stage.leaves
    known = kind.evaluation_metrics if issubclass(kind, Evaluation) else ()
    given = str(leaves.get("metric_for_best_model") or "loss")
    metric = given if given.startswith("eval_") else f"eval_{given}"
    if stage.kind == "sft" and metric == "eval_accuracy":
        metric = "eval_mean_token_accuracy"
    if metric not in known:
        advice = f"evaluations of kind {stage.kind} have {', '.join(known)}; they are compared by eval_loss"
        leaves.unsupported("metric_for_best_model", advice)
        leaves.unsupported("greater_is_better", "belongs to metric_for_best_model")
        return
    if metric != "eval_loss":
        stage.put("metric_for_best_model", metric, "metric_for_best_model")
    leaves.mapped("metric_for_best_model", f"{stage.name}.metric_for_best_model", metric)
    stage.copy("greater_is_better", "greater_is_better", flag)


def type_default(stage: StageDraft, ours: str) -> Any:
    """Return the default of a key of a stage's kind, or None."""
    own = KINDS[stage.kind].model_fields.get(ours)
    return None if own is None else own.default


def put_truncation(stage: StageDraft, source: str, cuts_the_end: bool) -> None:
    """Take over what happens with long rows: cut off after the limit, or else dropped and counted."""
    if cuts_the_end and "long_rows" in KINDS[stage.kind].model_fields:
        stage.put("long_rows", "truncate", source)
        stage.leaves.account(source, "mapped", f"{stage.name}.long_rows: truncate")
    elif stage.leaves.has(source):
        stage.leaves.differs(source, "longer rows are dropped and counted")


def put_sources(stage: StageDraft, port: str, sources: list[Source], source: str) -> None:
    """Write sources of rows: a reference alone as text, else the sources with their keys."""
    if not sources:
        return
    plain = len(sources) == 1 and set(sources[0]) == {"from"}
    value = sources[0]["from"] if plain else sources[0] if len(sources) == 1 else sources
    stage.put(port, value, source)


def count_rows(job: Job, source: object) -> int | None:
    """Return the number of lines of a JSONL file, or None for other data."""
    reference = source.get("from") if isinstance(source, dict) else source
    if not isinstance(reference, str) or not reference.startswith("path:") or not reference.endswith(".jsonl"):
        return None
    file = job.places.recipe / Path(reference.removeprefix("path:")).expanduser()
    try:
        with file.open("rb") as stream:
            return sum(1 for line in stream if line.strip())
    except OSError:
        return None


def put_held_out(stage: StageDraft, sources: list[Source], source: str) -> None:
    """Write rows to evaluate on in training, as `validation`, or `eval_prompts` of a stage of kind rl."""
    put_sources(stage, "eval_prompts" if stage.kind == "rl" else "validation", sources, source)


def put_split(job: Job, key: str, value: str, source: Source, target: str) -> None:
    """Write a split, or a slice of one (`train[:10%]`); of a file only the slice; anything else is not supported."""
    try:
        name, part = parse_split(value)
    except ValueError as error:
        job.leaves.account(key, "not supported", str(error))
        return
    is_file = str(source.get("from")).startswith("path:")
    kept = value[len(name or "") :] if is_file else value
    if part is not None or not is_file:
        source["split"] = kept
    job.leaves.mapped(key, f"{target}.split", kept or "a file has no splits")


def map_group(job: Job, stage: StageDraft, fsdp: tuple[str, ...], deepspeed: tuple[str, ...]) -> None:
    """Take over sharding and data parallelism as `resources`, which only `--devices` above 1 needs."""
    leaves = job.leaves
    sharded, zero = (_find_first_on(job, keys) for keys in (fsdp, deepspeed))
    strategy = "fsdp2" if asks_for_shards(job, fsdp, deepspeed) else "ddp"
    if job.devices > 1:
        group = {"train": {"workers": job.devices, "num_gpus": 1, "strategy": strategy}}
        stage.put("resources", group, sharded or zero or f"--devices {job.devices}")
    if job.devices > 1 and strategy == "fsdp2":
        use_whole_states(stage)
    for key in (*fsdp, *deepspeed):
        for leaf in leaves.leaves_of(key):
            if _is_off(leaves.values[leaf]):
                leaves.harmless(leaf, "is off")
            elif "offload" in leaf.rpartition(".")[2] and leaves.values[leaf] is not False:
                leaves.account(leaf, "not supported", "nothing is offloaded; `posttrain plan --memory` tells what fits")
            elif job.devices > 1 and (key in (sharded, zero)):
                leaves.account(leaf, "mapped", f"{stage.name}.resources.train.strategy: {strategy}")
            else:
                why = "one device has nothing to shard" if job.devices == 1 else "posttrain wraps every block"
                leaves.harmless(leaf, f"{why}; `--devices N` writes `resources`")


def use_whole_states(stage: StageDraft) -> None:
    """Write an optimiser whose states are not in 8 bits, which cannot be sharded."""
    optim = str(stage.get("optim", ""))
    if optim.endswith("_8bit"):
        stage.put(
            "optim", optim.removesuffix("_8bit"), f"{stage.lines['optim'].source}, whose states cannot be sharded"
        )
        note = f"{stage.name}.optim: {stage.get('optim')}; states in 8 bits cannot be sharded, use `strategy: ddp`"
        stage.leaves.renote(f"{stage.name}.optim", note, "default differs")


def asks_for_shards(job: Job, fsdp: tuple[str, ...], deepspeed: tuple[str, ...]) -> bool:
    """Return whether a configuration shards its model over devices, of which there is more than one."""
    zero = _find_first_on(job, deepspeed)
    stages = zero is not None and _reads_zero_2_or_3(job.leaves.get(zero))
    return job.devices > 1 and (stages or _find_first_on(job, fsdp) is not None)


def _find_first_on(job: Job, keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if not _is_off(job.leaves.get(key))), None)


def _is_off(value: Any) -> bool:
    return value in (None, False, "", [], {}, "no", "none", "false")


def _reads_zero_2_or_3(value: Any) -> bool:
    text = str(value).lower()
    return any(word in text for word in ("zero2", "zero3", "zero_2", "zero_3", "stage2", "stage3", "'stage': 2"))

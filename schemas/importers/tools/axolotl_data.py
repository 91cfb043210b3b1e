"""axolotl's data sets: references, formats, columns and the turns that have a loss."""

from typing import Any

from schemas.base import JsonObject
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import Job, Source, put_split
from schemas.importers.common.references import refer
from schemas.importers.common.templates import map_template
from schemas.importers.common.values import flag
from schemas.row_templates import is_template
from schemas.source.foreign_keys import LOADING

PAIR_COLUMNS = {"intel": {"prompt": "question"}, "argilla": {"prompt": "instruction"}, "icr": {"prompt": "input"}}
PAIR_COLUMNS["argilla"] |= {"chosen": "chosen_response", "rejected": "rejected_response"}
MESSAGES = ("chat_template", "sharegpt", "chatml", "pygmalion", "llama3", "messages")
BUILDERS = ("json", "csv", "parquet", "text", "arrow")
"""Paths that say the format of the files, and not where they are."""
ALPACA = ("alpaca", "alpaca_chat", "alpaca_w_system")
COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "gpteacher": ("alpaca", {"output": "response"}),
    "jeopardy": ("prompt_completion", {"prompt": "{category}: {question}", "completion": "answer"}),
    "alpaca_chat.load_qa": ("prompt_completion", {"prompt": "question", "completion": "answer"}),
    "context_qa.load_v2": ("prompt_completion", {"prompt": "{context}\n\n{question}", "completion": "answer"}),
    "creative": ("alpaca", {}),
}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def map_text(job: Job, stage: StageDraft, at: str) -> Source:
    """Return the source of plain texts for continued pre-training."""
    leaves = job.leaves
    is_map = isinstance(leaves.get(at), dict)
    key = f"{at}.path" if is_map else at
    source = _refer(job, stage, key, f"{at}.revision" if is_map else "")
    if source and is_map:
        _copy_words(job, at, source, {"name": "subset", "split": "split"}, stage)
        source |= {"format": "text"}
        _map_column(job, at, "text_column", "text", source, stage)
        leaves.harmless(f"{at}.type", "texts")
    elif source:
        source |= {"format": "text"}
    return source


def _refer(job: Job, stage: StageDraft, key: str, revision: str = "") -> Source:
    leaves = job.leaves
    name = leaves.get(key)
    if name is None:
        leaves.account(key, "not supported", "names no data")
        return {}
    try:
        reference = refer(name, job.places, leaves.get(revision) if revision else None)
    except ValueError as error:
        leaves.account(key, "not supported", str(error))
        return {}
    leaves.mapped(key, f"{stage.name}.data", reference)
    if revision:
        leaves.account(revision, "mapped", reference)
    return {"from": reference}


def _copy_words(job: Job, at: str, source: Source, names: dict[str, str], stage: StageDraft) -> None:
    for theirs, ours in names.items():
        value = job.leaves.get(f"{at}.{theirs}")
        if isinstance(value, str):
            if ours == "split":
                put_split(job, f"{at}.{theirs}", value, source, f"{stage.name}.data")
            elif source["from"].startswith("path:"):
                job.leaves.harmless(f"{at}.{theirs}", "a file has no parts")
            else:
                source[ours] = value
            job.leaves.mapped(f"{at}.{theirs}", f"{stage.name}.data.{ours}")


def _map_column(job: Job, at: str, theirs: str, ours: str, source: Source, stage: StageDraft) -> None:
    """Map the name of a column where it is another one than ours."""
    value = job.leaves.get(f"{at}.{theirs}")
    if isinstance(value, str) and value != ours:
        source.setdefault("columns", {})[ours] = value
    if value is not None:
        job.leaves.mapped(f"{at}.{theirs}", f"{stage.name}.data.columns.{ours}")


def map_sources(job: Job, stage: StageDraft, at: str) -> list[Source]:
    """Return the sources of one data set, one for each file that it names; none if it cannot be read."""
    made = _map_source(job, stage, at)
    files = _find_files(job, at) if made else []
    return [made | {"from": file} for file in files] or ([made] if made else [])


def _find_files(job: Job, at: str) -> list[str]:
    """Return the files of this machine that a data set names: below its folder, or by themselves."""
    if not isinstance(job.leaves.get(at), dict):
        return []
    path, files = job.leaves.get(f"{at}.path"), job.leaves.get(f"{at}.data_files")
    names = files.get("train") if isinstance(files, dict) else files
    listed = [str(name) for name in _list(names)]
    if path not in BUILDERS:
        folder = job.places.find(str(path))
        if folder is None or not folder.is_dir():
            return []
        listed = [name if job.places.find(f"{path}/{name}") is None else f"{path}/{name}" for name in listed]
    return [refer(name, job.places) for name in listed]


def _map_source(job: Job, stage: StageDraft, at: str) -> Source:
    """Return the source of one data set, or of its first file; empty if it cannot be read."""
    leaves = job.leaves
    if not isinstance(leaves.get(at), dict):
        return _refer(job, stage, at)
    if files := _find_files(job, at):
        made: Source = {"from": files[0]}
        leaves.harmless(f"{at}.path", "the files say where they are")
        leaves.account(f"{at}.data_files", "mapped", f"{stage.name}.data: {', '.join(files)}")
    else:
        made = _refer(job, stage, f"{at}.path", f"{at}.revision")
        leaves.unsupported(f"{at}.data_files", "name the files: `from: path:…`, or a subset of the data set")
    if not made:
        return made
    _copy_words(job, at, made, {"name": "subset", "split": "split"}, stage)
    leaves.harmless(f"{at}.ds_type", "the format is detected from the rows")
    _map_format(job, stage, at, made)
    if leaves.has(f"{at}.shards"):
        leaves.account(f"{at}.shards", "not supported", "set `max_rows` of the source to the rows that you want")
    for key in ("shards_idx", "preprocess_shards"):
        leaves.harmless(f"{at}.{key}", LOADING)
    _map_template_of(job, stage, at)
    _map_roles(job, stage, at)
    return made


def _map_format(job: Job, stage: StageDraft, at: str, made: Source) -> None:
    leaves, kind = job.leaves, leaves_type(job, at)
    if isinstance(kind, dict):
        _map_own_format(job, stage, at, kind, made)
        return
    head, _, strategy = str(kind or "").partition(".")
    head = head.partition(":")[0]
    note = f"{stage.name}.data.format"
    if stage.kind == "rl":
        leaves.account(f"{at}.type", "not supported", "a function that makes prompts: map columns with `columns`")
        return
    if stage.kind == "process_reward_model":
        made["format"] = "steps"
        leaves.account(f"{at}.type", "mapped", f"{note}: steps")
        stage.copy(f"{at}.step_separator", "step_separator", str)
        stage.copy(f"{at}.train_on_last_step_only", "train_on_last_step_only", flag)
        leaves.unsupported(f"{at}.max_completion_length", "solutions are cut at `max_length`")
        return
    if stage.kind in ("preference", "reward_model"):
        columns = PAIR_COLUMNS.get(strategy.rpartition(".")[2], {})
        if columns:
            made |= {"format": "preference", "columns": dict(columns)}
        for theirs, ours in (("field_chosen", "chosen"), ("field_rejected", "rejected"), ("field_messages", "prompt")):
            _map_column(job, at, theirs, ours, made, stage)
        leaves.account(f"{at}.type", "mapped", note)
    elif str(kind) in COLUMNS:
        made["format"], columns = COLUMNS[str(kind)]
        made |= {"columns": dict(columns)} if columns else {}
        leaves.account(f"{at}.type", "mapped", note)
    elif str(kind) == "alpaca" and _is_all_alpaca(job):
        made["format"] = "alpaca"
        stage.put("chat_template", "alpaca", f"{at}.type")
        leaves.account(f"{at}.type", "mapped", f"{note}: alpaca, with its own prompts: chat_template: alpaca")
    elif head in ALPACA:
        made["format"] = "alpaca"
        leaves.account(f"{at}.type", "mapped", f"{note}: alpaca; its texts go through the model's chat template")
    elif head in MESSAGES:
        made["format"] = "messages"
        leaves.account(f"{at}.type", "mapped", f"{note}: messages")
    elif head in ("completion", "pretrain"):
        made["format"] = "text"
        leaves.account(f"{at}.type", "mapped", f"{note}: text")
        _map_column(job, at, "field", "text", made, stage)
    elif kind is not None:
        leaves.account(f"{at}.type", "not supported", "no such format: map the columns with `columns` of the source")
    field = leaves.get(f"{at}.field_messages")
    if field not in (None, "messages", "conversations") and made.get("format") == "messages":
        made["columns"] = {"messages": field}
    leaves.account(f"{at}.field_messages", "mapped", f"{stage.name}.data.columns.messages")
    leaves.harmless(f"{at}.conversation", "the chat template writes conversations")


def _is_all_alpaca(job: Job) -> bool:
    """Return whether all rows are prompts of Alpaca, which no chat template is to be around."""
    kinds = [leaves_type(job, f"datasets.{i}") for i, _ in enumerate(_list(job.leaves.get("datasets")))]
    return all(kind == "alpaca" for kind in kinds) and not job.leaves.has("chat_template")


def leaves_type(job: Job, at: str) -> Any:
    """Return the type of a data set: a word, or a map of fields."""
    return job.leaves.get(f"{at}.type")


def _map_own_format(job: Job, stage: StageDraft, at: str, kind: JsonObject, made: Source) -> None:
    """Map fields that the configuration names itself, with a template of the prompt."""
    leaves, where = job.leaves, f"{at}.type"
    if stage.kind != "sft":
        is_labels = str(leaves.get("rl", "")).lower() == "kto"
        sides = ("completion", "label") if is_labels else ("chosen", "rejected")
        for ours in ("prompt", *sides):
            _map_column(job, where, f"field_{ours}", ours, made, stage)
        made["format"] = "labels" if is_labels else "preference"
        leaves.unsupported(where, "the chat template writes prompts and answers")
        return
    fields = {"instruction": kind.get("field_instruction", "instruction"), "input": kind.get("field_input", "input")}
    form = str(kind.get("format") or "{instruction}")
    for name, field in fields.items():
        form = form.replace(f"{{{name}}}", f"{{{field}}}" if form.strip() != f"{{{name}}}" else str(field))
    made |= {"format": "prompt_completion"}
    made["columns"] = {"prompt": form, "completion": str(kind.get("field_output", "output"))}
    if kind.get("field_system"):
        made["columns"]["system"] = str(kind["field_system"])
    for key in ("field_instruction", "field_input", "field_output", "field_system"):
        leaves.account(f"{where}.{key}", "mapped", f"{stage.name}.data.columns")
    note = "the user's message; the chat template writes what is around it"
    leaves.account(
        f"{where}.format", "mapped" if is_template(form) else "harmless", f"{made['columns']['prompt']}: {note}"
    )
    leaves.unsupported(f"{where}.no_input_format", "every row has the same format")
    if kind.get("system_prompt") and "field_system" not in kind:
        stage.put("system_prompt", str(kind["system_prompt"]), f"{where}.system_prompt")
        leaves.mapped(f"{where}.system_prompt", f"{stage.name}.system_prompt")
    leaves.unsupported(where, "the chat template writes it")


def _map_template_of(job: Job, stage: StageDraft, at: str) -> None:
    for key in ("chat_template", "chat_template_jinja"):
        if job.leaves.has(f"{at}.{key}"):
            map_template(stage, f"{at}.{key}")


def _map_roles(job: Job, stage: StageDraft, at: str) -> None:
    """Map the turns that have a loss, and the names of roles and keys of messages."""
    leaves = job.leaves
    roles = leaves.get(f"{at}.roles_to_train")
    if roles is not None:
        named = {str(role) for role in _list(roles)}
        if named <= {"assistant", "gpt", "model"} and named:
            leaves.mapped(f"{at}.roles_to_train", f"{stage.name}.train_on: all")
        else:
            advice = "only the assistant's turns have a loss; mark turns with `train: true` and `train_on: marked`"
            leaves.account(f"{at}.roles_to_train", "not supported", advice)
    trains_on = leaves.get(f"{at}.train_on_eos")
    if trains_on in (None, "turn"):
        leaves.account(f"{at}.train_on_eos", "mapped", "the token that ends a turn has a loss")
    leaves.unsupported(f"{at}.train_on_eos", "the token that ends a turn has a loss, and no other")
    detail = leaves.get(f"{at}.message_field_training")
    if detail is not None:
        stage.put("train_on", "marked", f"{at}.message_field_training")
        same = "turns with `train: true` have a loss; rename the key of the messages" if detail != "train" else ""
        leaves.account(
            f"{at}.message_field_training", "not supported" if same else "mapped", same or "train_on: marked"
        )
    pairs = leaves.get(f"{at}.message_property_mappings") or {}
    for word, key in pairs.items() if isinstance(pairs, dict) else ():
        known = (word, key) in {("role", "role"), ("role", "from"), ("content", "content"), ("content", "value")}
        advice = "messages have `role` and `content`, or `from` and `value`; rename the keys"
        status = "mapped" if known else "not supported"
        leaves.account(f"{at}.message_property_mappings.{word}", status, "read as it is" if known else advice)
    for theirs, names in (("message_field_role", ("role", "from")), ("message_field_content", ("content", "value"))):
        if leaves.get(f"{at}.{theirs}") in names:
            leaves.account(f"{at}.{theirs}", "mapped", "read as it is")
    for leaf in leaves.leaves_of(f"{at}.roles"):
        leaves.account(leaf, "harmless", "human, gpt, user, assistant, system and tool are known")

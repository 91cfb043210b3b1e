"""The manifest: the record of a finished step; it exists only if the artifact is complete."""

from schemas.base import JsonObject, Schema
from schemas.references import ArtifactType

NOTICES = "notices"
"""Key of a manifest's details: what a user should know of the result, a list of sentences."""


class FileDigest(Schema):
    """One file of an output."""

    path: str
    """Relative to the output's folder, with slashes."""
    size: int
    """Bytes."""
    md5: str
    """md5 as DVC computes it: the name of the object in DVC's cache."""
    sha256: str
    """sha256 of the content, for verification."""


class Output(Schema):
    """One named output of a step."""

    type: ArtifactType
    """Artifact type."""
    digest: str
    """sha256 over the sorted (path, sha256) pairs of its files: the content address."""
    dvc: str
    """DVC's name of the folder: md5 of its listing, with `.dir`."""
    files: tuple[FileDigest, ...]
    """Every file."""


class InputRecord(Schema):
    """The input that one port received."""

    port: str
    """Dotted path of the field."""
    step: str | None = None
    """Step it came from, if inside."""
    key: str | None = None
    """Key of that step."""
    output: str | None = None
    """Named output."""
    source: str | None = None
    """Outside reference."""
    digest: str
    """Content digest of what was read."""
    type: ArtifactType
    """Artifact type."""


class Contract(Schema):
    """What the models of later stages must have in common: fingerprints (sha256 hex) and maximum length in tokens."""

    tokenizer: str
    """Fingerprint of vocabulary, merges and normalisation."""
    chat_template: str
    """Fingerprint of the template's text."""
    special_tokens: str
    """Fingerprint of the special tokens and their ids."""
    stop_ids: tuple[int, ...] | None = None
    """Ids at which sampling stops by `generation_config.json`, sorted; None: the model's files name none."""
    chat: JsonObject = {}
    """Chat settings that the model carries: template arguments, system prompt, tools, date."""
    max_length: int
    """Maximum sequence length of the model in tokens."""


class Earlier(Schema):
    """What earlier attempts at a step spent, up to the checkpoint from which the last one continued."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: int = 0
    paid: float = 0.0
    paid_tokens: int = 0


class Manifest(Schema):
    """The record of one step; all other records (MLflow, DVC, DuckDB, reports) are projections of manifests."""

    key: str
    """Key of the step."""
    kind: str
    """Kind."""
    identity: JsonObject
    """The content that the key is the hash of."""
    step: str
    """Name of the step in the run that made it."""
    recipe: str
    """Recipe of the run that made it."""
    run: str
    """Run that made it."""
    seed: int
    """Seed."""
    inputs: tuple[InputRecord, ...]
    """What the ports received."""
    outputs: dict[str, Output]
    """Named outputs, the default first."""
    contract: Contract | None = None
    """Contract of the model, for steps that produce one."""
    metrics: dict[str, float | int | bool | str | None] = {}
    """Final metrics of the step; gates and `until` read these."""
    details: JsonObject = {}
    """Structured results for reports: tables, dropped rows, gate outcomes."""
    commit: str | None = None
    """Git commit of the code."""
    dirty: bool = False
    """Whether the checkout had uncommitted changes."""
    versions: dict[str, str] = {}
    """Python and package versions."""
    machine: dict[str, str | int] = {}
    """Operating system, processor, cores, memory in GiB and GPUs of the machine that made it; never its name."""
    started: str
    """UTC, ISO 8601."""
    seconds: float
    """Wall time of the step."""
    cpu_seconds: float = 0.0
    """CPU seconds of the step's process and its training workers."""
    gpu_seconds: float = 0.0
    """Wall time in seconds times the GPUs held."""
    tokens: int = 0
    """Tokens sampled or trained on, as reported by the step."""
    paid: float = 0.0
    """Cost of remote models, by the prices of their endpoints."""
    paid_tokens: int = 0
    """Number of those tokens that servers charged for."""
    earlier: Earlier = Earlier()
    """The part of seconds, cpu_seconds, tokens, paid and paid_tokens that earlier attempts spent; 0: uninterrupted."""
    peak_rss: int = 0
    """Peak resident memory in bytes, of the step's process or its largest training worker."""

"""How a stage names its inputs.

`cold_start` is a stage of this recipe and `pairs.preference_pairs` one of its named outputs; `hub:org/name@revision`,
`path:./dir` and `mlflow:name@champion` come from outside. Every type of port is a subclass that lists the artifact
types it accepts.
"""

from typing import ClassVar, Literal, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

ArtifactType = Literal[
    "policy",
    "adapter",
    "reward_model",
    "process_reward_model",
    "value_model",
    "action_values",
    "prompts",
    "chat",
    "preference_pairs",
    "step_labels",
    "trajectories",
    "eval_report",
    "agent",
    "control_policy",
    "transitions",
    "directory",
]
ARTIFACT_TYPES: tuple[str, ...] = get_args(ArtifactType)
MODEL_TYPES = ("policy", "adapter", "reward_model", "process_reward_model", "value_model", "action_values")
"""Artifact types that hold weights."""
POLICY_TYPES = ("policy", "adapter")
"""Artifact types that hold a language model, whole or as an adapter over one."""
TABLE_TYPES = ("prompts", "chat", "preference_pairs", "step_labels", "trajectories")
"""Artifact types that hold tables of rows."""
SCHEMES = ("hub", "path", "mlflow")
STAND_INS = "stand-ins"
"""Folder in the state folder with made-up rows: no stage makes them, so a recipe may name their paths."""


def is_pattern(path: str) -> bool:
    """Return whether a path names files by a pattern."""
    return any(mark in path for mark in "*?[")


class Reference(str):
    """A reference to an artifact; `accepts` lists the artifact types that fit the port."""

    accepts: ClassVar[tuple[str, ...]] = ARTIFACT_TYPES
    outside: ClassVar[str | None] = None
    """Artifact type of an outside source; None: the first type in `accepts`."""

    @property
    def scheme(self) -> str | None:
        """`hub`, `path` or `mlflow` for an outside source; None for a stage of this recipe."""
        head, colon, _ = self.partition(":")
        return head if colon else None

    @property
    def stage(self) -> str:
        """Name of the stage (only for inside references)."""
        return self.partition(".")[0]

    @property
    def output(self) -> str | None:
        """Named output of the stage, None for its first."""
        return self.partition(".")[2] or None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(min_length=1), serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict:
        return {"type": "string", "minLength": 1, "description": f"reference to: {', '.join(cls.accepts)}"}


class PolicyRef(Reference):
    """A language model, whole or as an adapter over one."""

    accepts = POLICY_TYPES


class RewardModelRef(Reference):
    """A model that scores a prompt and its completion."""

    accepts = ("reward_model",)


class ProcessRewardModelRef(Reference):
    """A model that scores every step, or every token, of a completion."""

    accepts = ("process_reward_model",)


class ActionValuesRef(Reference):
    """Q and V of the tokens of a model."""

    accepts = ("action_values",)


class NetworkRef(Reference):
    """Initial weights of a network that is trained with the policy: such a network, or a model whose body is used."""

    accepts = ("value_model", "process_reward_model", "reward_model", "policy", "adapter")


class PromptsRef(Reference):
    """Problems for the model."""

    accepts = ("prompts",)


class ChatRef(Reference):
    """Prompts with completions."""

    accepts = ("chat",)


class PreferencePairsRef(Reference):
    """Prompts with a chosen and a rejected completion."""

    accepts = ("preference_pairs",)


class StepLabelsRef(Reference):
    """Solutions in steps, each with a label."""

    accepts = ("step_labels",)


class TrajectoriesRef(Reference):
    """Samples of an rl stage, with their scores."""

    accepts = ("trajectories",)


class AgentRef(Reference):
    """An agent: environment, toolkit and context."""

    accepts = ("agent",)


class ControlPolicyRef(Reference):
    """A policy for the worlds of Gymnasium."""

    accepts = ("control_policy",)


class TransitionsRef(Reference):
    """Steps of episodes in a world."""

    accepts = ("transitions",)


class DirectoryRef(Reference):
    """Files that a stage of kind python wrote."""

    accepts = ("directory",)


class EvalReportRef(Reference):
    """The report of an evaluation."""

    accepts = ("eval_report",)


class RowsRef(Reference):
    """Any table of rows."""

    accepts = ("prompts", "chat", "preference_pairs", "step_labels")
    outside = "chat"


class DataRef(Reference):
    """Rows in any format: files, a data set of the hub, or a table of rows."""

    accepts = ("prompts", "chat", "preference_pairs", "step_labels", "directory")
    outside = "directory"


class AnyRef(Reference):
    """Any artifact."""

    outside = "directory"

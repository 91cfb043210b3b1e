"""Who plays the roles of a stage: each role with its policy, its engine and its environment, or its script."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol
from learning.sampling.conversations import Speaker
from schemas.roles import RoleSpec

Played = dict[str, tuple[Policy, EngineProtocol]]
"""Each policy of a stage, trained or not, with its engine."""


def make_speakers(roles: Mapping[str, RoleSpec], played: Played, inputs: Mapping[str, Path]) -> dict[str, Speaker]:
    """Return who plays each role; `close_speakers` ends what their environments started."""
    return {role: _make_speaker(role, spec, played, inputs) for role, spec in roles.items()}


def _make_speaker(role: str, spec: RoleSpec, played: Played, inputs: Mapping[str, Path]) -> Speaker:
    if spec.script is not None:
        return Speaker(role, spec, script=bind(spec.script, f"roles.{role}.script", inputs))
    policy, engine = played[spec.policy]
    wrapped = wrap_in_environment(engine, spec.env, policy.tokenizer, inputs, policy.max_length, f"roles.{role}.env")
    return Speaker(role, spec, policy, wrapped)


def close_speakers(speakers: Iterable[Speaker]) -> None:
    """Stop the threads and workers of the roles' environments."""
    for speaker in speakers:
        if (clock := getattr(speaker.engine, "clock", None)) is not None:
            clock.close()

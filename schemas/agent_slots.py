"""Slots of stages about agents: who writes one, and who says what practice has taught it."""

from schemas.use import EnvUse, Use


class AgentEnvUse(EnvUse):
    """Answers an agent's turns; its tools are those of the agent's toolkit."""

    withheld = frozenset({"tools"})


class AuthorUse(Use):
    """Writes tools and settings of an agent for a task."""

    home = ("learning.agents.authors",)
    asks = frozenset({"task", "toolkit", "refused", "attempt", "rng", "desk"})


class ExtractorUse(Use):
    """Says what there is to know after a group of rollouts whose scores differ: the list of experiences, anew."""

    home = ("learning.agents.extractors",)
    asks = frozenset({"row", "rollouts", "experiences", "rng", "step", "state", "desk", "sampler"})

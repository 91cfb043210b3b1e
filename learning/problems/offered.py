"""Problems that offer the tools of an environment."""

from typing import Any

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.lookup import ProblemsFunction
from schemas.errors import StepError
from schemas.use import EnvUse


def offered(*, of: ProblemsFunction, env: EnvUse) -> list[Row]:
    """Return another generator's problems with the schemas of an environment's tools, which chat templates show.

    `env` is an environment with tools of its own, `openai_tools`, as in the stages that play it. Raise StepError for
    another one.
    """
    environment: Any = build_environment(env, {})
    tools = getattr(environment, "tools", None)
    if not isinstance(tools, list):
        raise StepError(f"problems offered: environment {env.use} has no schemas of tools; use `openai_tools`")
    return [row | {"tools": tools} for row in of()]

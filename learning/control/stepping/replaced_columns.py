"""Columns of own steps that a function replaces before they are kept. Shapes: N worlds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Steps
from learning.lookup import Bound
from schemas.errors import StepError


def replace_columns(
    steps: Steps,
    relabel: Bound,
    iteration: int,
    spaces: Spaces,
    rng: np.random.Generator,
    kept_KO: np.ndarray | None,
    *,
    policy_loss: str | None,
    more: Mapping[str, Any] | None = None,
) -> Steps:
    """Return steps with the columns that `relabel` gives.

    `kept_KO` are the observations after all kept own steps, where there is a buffer of them. `policy_loss` names a loss
    that needs the actions that the policy took; `more` is further what the function may ask for. Raise StepError for
    columns that may not be given, for values that do not fit, and for actions with such a loss.
    """
    supplies = {"observation_NO": steps.observation, "action_N": steps.action, "reward_N": steps.reward}
    supplies |= {"next_observation_NO": steps.next_observation, "spaces": spaces, "rng": rng}
    if kept_KO is not None:
        supplies["kept_KO"] = kept_KO
    columns = relabel.ask(iteration, {**supplies, **(more or {}), "step": iteration})
    if wrong := set(columns) - {"action", "reward"}:
        raise StepError(f"relabel {relabel.name}: it gives {', '.join(sorted(wrong))}; it may give action and reward")
    if "action" in columns and policy_loss is not None:
        raise StepError(
            f"relabel {relabel.name}: it replaces actions, and loss {policy_loss} needs those that the "
            "policy took; use bc, or another loss that takes steps of any policy"
        )
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for name, column in arrays.items():
        kept: np.ndarray = getattr(steps, name)
        of_none = spaces.is_discrete and name == "action" and not np.isin(column, range(spaces.actions)).all()
        if column.shape != kept.shape or not np.isfinite(column).all() or of_none:
            wanted = f"{kept.shape} finite numbers" + (f" from 0 to {spaces.actions - 1}" if of_none else "")
            raise StepError(f"relabel {relabel.name}: its {name} must be {wanted}, and is {column.tolist()}")
    return replace(steps, **arrays)

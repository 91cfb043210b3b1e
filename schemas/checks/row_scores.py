"""A curation has rows and completions, but no samples of a policy: rewards that need those cannot score its rows."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.stages.curate import Curate
from schemas.steps.step_info import StepInfo
from schemas.use import RewardUse

SUPPLIED = frozenset({"rows", "completions", "groups", "sources", "step", "rng", "state", "account"})
"""What a curation can supply to a reward."""


def check_row_scores(info: StepInfo) -> Iterator[Problem]:
    """Yield the rewards of a curation that ask for more than rows and completions."""
    if not isinstance(info.stage, Curate):
        return
    for slot in info.slots:
        if not isinstance(slot.use, RewardUse):
            continue
        if missing := [name for name in slot.signature.supplied if name not in SUPPLIED]:
            message = (
                f"`{slot.use.use}` needs {', '.join(missing)}, and rows under curation have no samples of a policy"
            )
            advice = "use a reward of texts, such as `models.learned`, `judges.model` or `answers.exact`"
            yield info.problem(slot.path, message, advice)

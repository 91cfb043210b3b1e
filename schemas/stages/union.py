"""The table of contents: every kind, one per line."""

from typing import Annotated

from pydantic import Field

from schemas.stages.curate import Curate
from schemas.stages.evaluate import Evaluate
from schemas.stages.init import Init
from schemas.stages.merge import Merge
from schemas.stages.python import Python
from schemas.stages.reward_model import RewardModel
from schemas.stages.rl import Rl
from schemas.stages.sft import Sft
from schemas.stages.synthesize import Synthesize

Stage = Annotated[
    Init
    | Synthesize
    | Curate
    | Sft
    | RewardModel
    | Rl
    | Merge
    | Evaluate
    | Python,
    Field(discriminator="kind"),
]  # fmt: skip

"""Every kind of stage, one per line; all other lists of kinds are derived from this one."""

from typing import Annotated, get_args

from pydantic import Field

from schemas.stages.action_values import ActionValues
from schemas.stages.agent import AgentStage
from schemas.stages.base import BaseStage
from schemas.stages.benchmark import Benchmark
from schemas.stages.collect import Collect
from schemas.stages.control import Control
from schemas.stages.curate import Curate
from schemas.stages.data import Data
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_control import EvaluateControl
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.stages.init import Init
from schemas.stages.merge import Merge
from schemas.stages.merge_search import MergeSearch
from schemas.stages.practice import Practice
from schemas.stages.preference import Preference
from schemas.stages.process_reward_model import ProcessRewardModel
from schemas.stages.python import Python
from schemas.stages.reward_model import RewardModel
from schemas.stages.rl import Rl
from schemas.stages.search import Search
from schemas.stages.sft import Sft
from schemas.stages.synthesize import Synthesize

Stage = Annotated[
    Init
    | Synthesize
    | Data
    | Curate
    | Sft
    | RewardModel
    | ProcessRewardModel
    | ActionValues
    | Preference
    | AgentStage
    | Practice
    | Rl
    | Merge
    | MergeSearch
    | Evaluate
    | EvaluateRewards
    | Collect
    | Control
    | EvaluateControl
    | Search
    | Benchmark
    | Python,
    Field(discriminator="kind"),
]

KINDS: dict[str, type[BaseStage]] = {
    get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(get_args(Stage)[0])
}


def traits_of(kind: str) -> type[BaseStage]:
    """Return the class of a kind, which holds its traits, or the base class for a kind that this version lacks."""
    return KINDS.get(kind, BaseStage)

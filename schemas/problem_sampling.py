"""Keys of stages that sample completions of held-out problems and score them."""

from pydantic import Field

from schemas.chat import Chat
from schemas.endpoint import Capped
from schemas.evaluation_slots import EvaluationTaskUse
from schemas.references import PromptsRef
from schemas.training import Dtype
from schemas.use import EngineUse, EnvUse, RewardUse


class ProblemSampling(Capped, Chat):
    """Which problems models answer, how completions are sampled, and how they are scored."""

    tasks: list[EvaluationTaskUse] = []
    """Generators of held-out problems; `lm_eval` takes tasks of lm-eval, which prompts and scores (docs/lm-eval.md)."""
    prompts: PromptsRef | None = None
    """Held-out problems made by a stage, instead of `tasks` or in addition to them."""
    rewards: list[RewardUse] = Field(default=[RewardUse(use="answers.exact")], min_length=1)
    """Functions that score a completion; it is correct if their weighted sum reaches `threshold`."""
    threshold: float = 1.0
    """Smallest score at which a completion counts as correct."""
    num_generations: int = Field(default=1, ge=1)
    """Samples per problem."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0: greedy decoding."""
    max_completion_length: int = Field(default=64, ge=1)
    """Most tokens per completion."""
    engine: EngineUse = EngineUse(use="torch")
    """Engine that samples completions."""
    dtype: Dtype = "float32"
    """Precision of the weights of models that are loaded here."""
    env: EnvUse | None = None
    """Environment that answers the model's turns, so that a sample is an episode; null: a sample is a single turn."""
    limit: int | None = Field(default=None, ge=1)
    """Most problems per task; null: all."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of all intervals."""
    num_bootstrap: int = Field(default=10000, ge=100)
    """Number of resamples in the paired bootstrap."""

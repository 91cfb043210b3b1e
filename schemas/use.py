"""A slot: a place where a recipe names a function.

`advantage: [{use: center, by: group}]` names `learning.algorithm.advantages.normalisation:center`; the keys beside
`use` are that
function's parameters after its `*`. A bare word `center` is the same as `{use: center}`. `pkg.module:function`
names code of the user's own. What is before the `*` is supplied by the loop, in some slots by place (`takes`), in most
by name (`requests`): nothing is computed that no function asks for. Options are checked against the signature by
`schemas.signatures`.
"""

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.base import Schema
from schemas.number_schedules import Number
from schemas.supplied import FIXED, MOVING, PAIR_COLUMNS, PATHS, SAMPLES, SCORING


class Use(Schema):
    """A function named in a recipe; each slot is a subclass that says where its names live."""

    model_config = ConfigDict(extra="allow")

    home: ClassVar[tuple[str, ...]] = ()
    """Modules and packages that define what can be named; without one: import paths only."""
    qualified: ClassVar[bool] = False
    """Whether a name is `module.function`; else it is that of a function, whichever module of the home defines it."""
    member: ClassVar[str | None] = None
    """Where set, names are modules of the home, and this is the class in each whose constructor takes the options."""
    takes: ClassVar[tuple[str, ...] | None] = None
    """What is before the star, in this order; None: the function asks by name for any of `requests`."""
    withheld: ClassVar[frozenset[str]] = frozenset()
    """Options that the stage fills in itself, from other keys."""
    asks: ClassVar[frozenset[str]] = frozenset()
    """What the loop can supply by name, after what it gives by place. Columns of named references (`lp_<name>_T`) are
    added."""

    use: str = Field(min_length=1)
    """Name of the function, or `package.module:function`."""

    @model_validator(mode="before")
    @classmethod
    def bare_word(cls, value: Any) -> Any:
        """Accept `center` for `{use: center}`."""
        return {"use": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """What the recipe sets beside the slot's own fields."""
        return dict(self.model_extra or {})


class TokenizerUse(Use):
    """Builds a tokenizer."""

    home = ("learning.data.tokenizers",)
    takes = ()


class ProblemsUse(Use):
    """Generates problems."""

    home = ("learning.problems", "learning.toy_tasks")
    takes = ()


class TeacherUse(Use):
    """Writes a worked completion for a problem."""

    home = ("learning.teachers", "learning.toy_tasks")
    takes = ("row", "rng")


class RewardUse(Use):
    """Scores completions; the weighted sum over the list is the reward."""

    home = ("learning.rewards", "learning.toy_tasks.rewards")
    qualified = True
    asks = SCORING
    weight: Number = 1.0
    """Factor in the sum; a number schedule is allowed."""


class RowFilterUse(Use):
    """Says for each row whether to keep it."""

    home = ("learning.curation.row_filters",)
    takes = ("row",)


class PromptSamplerUse(Use):
    """Chooses what an iteration samples: which problems, how many completions of each, with which settings."""

    home = ("learning.collection.prompt_samplers", "learning.toy_tasks.cooperation")
    asks = frozenset({"rows", "num_groups", "n", "seed", "step", "rng", "state", "history", "metrics"})


class RolloutUse(Use):
    """Turns sample requests into completions."""

    home = ("learning.collection.rollouts",)
    asks = frozenset(
        {
            "requests",
            "sampler",
            "rng",
            "state",
            "step",
            "round",
            "max_steps",
            "stream",
            "request_samples",
            "score",
            "consume",
        }
    )


class LogitsProcessorUse(Use):
    """Changes the distribution that tokens are sampled from, before their log-probabilities are recorded."""

    home = ("learning.sampling.logits_processors",)
    asks = frozenset({"logits_BV", "place_B"})


class ResampleUse(Use):
    """Drops some of the scored completions, and requests further ones."""

    home = ("learning.collection.resampling", "learning.toy_tasks.tracing")
    asks = SAMPLES | {"num_groups", "round", "seed"}


class ExtraSamplesUse(Use):
    """Adds completions that were not sampled in this iteration: stored ones, an expert's, those of past policies."""

    home = ("learning.collection.extra_samples",)
    asks = SAMPLES


class FilterGroupsUse(Use):
    """Selects the sampled groups that are trained on, by their raw scores."""

    home = ("learning.collection.group_filters",)
    asks = PATHS | {"scores_P", "group_P", "truncated_P", "source_P", "rows", "history", "state", "step", "rng"}


class RewardShapingUse(Use):
    """Changes the rewards before they become advantages."""

    home = ("learning.algorithm.reward_shaping",)
    asks = PATHS | {"reward_P", "scores_P", "rows", "state", "step"} | FIXED


class AdvantageUse(Use):
    """One operation of the advantage pipeline; the list is applied in order."""

    home = ("learning.algorithm.advantages", "learning.batch.columns")
    takes = ("column", "batch")
    asks = FIXED | {"rows", "state", "scores_P"}


class AdvantageShapingUse(Use):
    """Changes the advantages of tokens."""

    home = ("learning.algorithm.advantage_shaping",)
    asks = FIXED | {"advantage_T", "batch"}


class TokenMaskUse(Use):
    """Selects the tokens that a term of the loss covers."""

    home = ("learning.algorithm.token_masks.masks",)
    asks = FIXED | {"advantage_T", "batch"}


class RatioUse(Use):
    """Log-ratio of the trained policy to the sampling policy, at token or sequence level."""

    home = ("learning.algorithm.ratios",)
    asks = MOVING


class ImportanceCorrectionUse(Use):
    """A factor ≥ 0 on every token's policy loss, for samples of another policy; it does not touch denominators."""

    home = ("learning.algorithm.importance_correction",)
    asks = FIXED | {"advantage_T", "batch", "rng"}


class PolicyLossUse(Use):
    """Per-token policy-gradient loss from log-ratio and advantage."""

    home = ("learning.algorithm.policy_losses",)
    asks = MOVING | {"log_ratio_T"}


class LossAggregationUse(Use):
    """Weight of every token in the loss, once per optimiser step over the global batch."""

    home = ("learning.algorithm.loss_aggregation",)
    asks = frozenset({"batch", "max_completion_length"})


class LossTermUse(Use):
    """A further term of the loss with its own mask and denominator."""

    home = ("learning.algorithm.loss_terms",)
    asks = MOVING | {"log_ratio_T"}
    coef: Number
    """Factor of the term; a number schedule is allowed."""
    loss_aggregation: LossAggregationUse | None = None
    """Weights of the term's tokens; null takes the stage's."""
    token_mask: list[TokenMaskUse] | None = None
    """Which tokens the term covers; null takes the stage's."""


class ControllerUse(Use):
    """Computes a number from the last iteration's metrics, or from the batch that is about to be trained on."""

    home = ("learning.algorithm.controllers",)
    asks = MOVING | {"metrics", "state"}


class EngineUse(Use):
    """Turns prompts into tokens."""

    home = ("learning.generation.engines",)
    takes = ("policy",)
    asks = frozenset({"desk"})
    member = "Engine"


class EnvUse(Use):
    """Answers the model's turns, so that a completion is an episode of several."""

    home = ("learning.environments", "learning.toy_tasks.environments")
    takes = ()
    member = "Environment"
    max_turns: int = Field(default=8, ge=1)
    """Turns of the model after which an episode ends as one that hit its limit; a plan may give a problem fewer."""
    workers: int = Field(default=8, ge=1)
    """Steps of the environment that run at the same time."""
    order: Literal["each", "together"] = "each"
    """An episode goes on when its own answer is there, or all wait for the slowest of the turn."""
    steps_per_answer: int | None = Field(default=8, ge=0)
    """With `each`: decode steps from a turn's end to its answer, which is waited for where it is late, so that runs are
    bit-identical; null: as soon as it is there."""
    decode_seconds: float | None = Field(default=None, gt=0)
    """Makes the environment's own clock the one that counts: a decode step takes so long on it, an answer the seconds
    that it tells, and nothing waits in fact; null: there is no such clock."""


class ToolUse(Use):
    """What a model may call in an environment."""

    home = ("learning.tools.calls",)
    takes = ("query",)
    asks = frozenset({"row", "rng"})


class MergeMethodUse(Use):
    """Makes one tensor of the same tensor of several models."""

    home = ("learning.merge.methods",)


class PairLossUse(Use):
    """Loss of preference pairs; the weighted sum over the list is trained on."""

    home = ("learning.preference.pair_losses", "learning.preference.likelihoods", "learning.preference.games")
    asks = frozenset({"kl", "state", "step"}) | {
        f"{name}_{shape}"
        for name in ("margin", *(f"{side}{of}" for side in ("chosen", "rejected") for of in PAIR_COLUMNS))
        for shape in "PB"
    }
    weight: Number = 1.0
    """Factor in the sum; a number schedule is allowed."""


class SearchUse(Use):
    """How a model's samples of a problem come about."""

    home = ("learning.evaluation.searches",)
    takes = ("problems", "ask", "score")


class DuelUse(Use):
    """How likely the first of two completions is preferred to the second: a number from 0 to 1."""

    home = ("learning.preference.duels",)
    takes = ("row", "first", "second")


class FunctionUse(Use):
    """Any function of the user's own, by import path."""

    takes = ("context",)

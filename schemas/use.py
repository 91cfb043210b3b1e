"""A slot: a place where a recipe names a function.

`advantage: [{use: center, by: group}]` names `learning.algorithm.advantages.normalisation:center`; the other keys
are that function's parameters after its `*`. A plain `center` is the same as `{use: center}`. `pkg.module:function`
names user-defined code. The loop supplies the parameters before the `*`, in some slots by position (`takes`), in most
by name (`asks`); only columns that some function requests are computed. `schemas.signatures` checks options against
the signature.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from schemas.base import Schema
from schemas.number_schedules import Number
from schemas.references import SCHEMES
from schemas.supplied import FIXED, MOVING, PAIR_COLUMNS, PATHS, SAMPLES, SCORING


class Use(Schema):
    """A function named in a recipe; each slot is a subclass that defines where its functions are found."""

    model_config = ConfigDict(extra="allow")

    home: ClassVar[tuple[str, ...]] = ()
    """Modules and packages whose functions can be named; empty: only import paths are accepted."""
    qualified: ClassVar[bool] = False
    """Whether a name is `module.function`; else it is the function's name alone, from any module of the home."""
    member: ClassVar[str | None] = None
    """If set, names are modules of the home, and this is the class in each whose constructor takes the options."""
    takes: ClassVar[tuple[str, ...] | None] = None
    """Positional parameters before the `*`, in order; None: the function requests any of `asks` by name."""
    withheld: ClassVar[frozenset[str]] = frozenset()
    """Options that the stage sets itself from other keys."""
    asks: ClassVar[frozenset[str]] = frozenset()
    """Names that the loop can supply, in addition to positional parameters. Columns of named references
    (`lp_<name>_T`) are added."""

    plain: ClassVar[str] = ""
    """Pattern of texts that stand for a function with the text as its option; editors accept them."""

    foreign: ClassVar[str] = ""
    """Advice for a `{name}` that is none of posttrain's and like none of them: how a library's own is named."""

    use: str = Field(min_length=1)
    """Name of the function, or `package.module:function`."""

    @model_validator(mode="before")
    @classmethod
    def accept_name(cls, value: object) -> object:
        """Accept `center` for `{use: center}`."""
        return {"use": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Options that the recipe sets, without the slot's own fields."""
        return dict(self.model_extra or {})


class TokenizerUse(Use):
    """Builds, trains or loads a tokenizer; `path:./folder` and `hub:org/name` stand for `pretrained`."""

    home = ("learning.data.tokenizers", "learning.data.trained_tokenizers", "learning.models.pretrained_tokenizer")
    takes = ()

    @model_validator(mode="before")
    @classmethod
    def accept_source(cls, value: Any) -> Any:
        """Accept `path:./folder` for `{use: pretrained, source: path:./folder}`."""
        outside = isinstance(value, str) and value.partition(":")[0] in SCHEMES and ":" in value
        return {"use": "pretrained", "source": value} if outside else value


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
    optional: bool = False
    """Leave this reward out of the sum of a completion for which it gives None. A completion is unscorable if all give
    None, as in TRL."""

    @model_validator(mode="before")
    @classmethod
    def accept_address(cls, value: Any) -> Any:
        """Accept `http://127.0.0.1:8000/score` for `{use: servers.http, url: ...}`."""
        is_address = isinstance(value, str) and value.startswith(("http://", "https://"))
        return {"use": "servers.http", "url": value} if is_address else value


class RowFilterUse(Use):
    """Decides for each row whether to keep it."""

    home = ("learning.curation.row_filters", "learning.curation.private_data", "learning.curation.language")
    takes = ("row",)


class RowScoreUse(Use):
    """Scores the rows of a block; rows outside of the limits are dropped."""

    home = ("learning.curation.row_scores",)
    takes = ("rows",)
    asks = frozenset({"account", "seed"})
    min: float | None = None
    """Lowest score that is kept; null: no limit."""
    max: float | None = None
    """Highest score that is kept; null: no limit."""
    min_quantile: float | None = Field(default=None, ge=0, le=1)
    """Lowest score that is kept, as a quantile of the scores of all rows: 0.1 drops the lowest tenth."""
    max_quantile: float | None = Field(default=None, ge=0, le=1)
    """Highest score that is kept, as a quantile of the scores of all rows: 0.9 drops the highest tenth."""
    unscored: Literal["drop", "keep", "stop"] = "drop"
    """What happens with a row that has no score, such as one that is too long for the model."""

    @model_validator(mode="after")
    def refuse_empty_ranges(self) -> Self:
        """Refuse limits between which there is nothing."""
        for low, high in (("min", "max"), ("min_quantile", "max_quantile")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(f"`{low}` ({least:g}) is above `{high}` ({most:g})")
        return self


class EmbeddingUse(Use):
    """Maps the rows of a block to vectors whose cosine says how similar two rows are."""

    home = ("learning.curation.embeddings", "learning.curation.model_embeddings")
    takes = ("rows",)


class PromptSamplerUse(Use):
    """Chooses the prompts of an iteration, the number of completions of each, and their sampling settings."""

    home = (
        "learning.collection.prompt_samplers",
        "learning.collection.cooperation",
        "learning.collection.openings",
        "learning.collection.instructions",
    )
    asks = frozenset({"rows", "num_groups", "n", "seed", "step", "rng", "state", "history", "metrics", "sampler"})


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
    asks = frozenset({"logits_BV", "place_B", "contexts_B"})


class ResampleUse(Use):
    """Drops scored completions, and requests further ones."""

    home = ("learning.collection.resampling", "learning.collection.program_traces", "learning.toy_tasks.tracing")
    asks = SAMPLES | {"num_groups", "round", "seed"}


class ExtraSamplesUse(Use):
    """Adds completions that were not sampled in this iteration: stored ones, an expert's, those of past policies."""

    home = ("learning.collection.extra_samples", "learning.collection.instructions")
    asks = SAMPLES | {"states"}


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
    asks = MOVING | {"log_ratio_T", "scores_P"}


class LossAggregationUse(Use):
    """Weight of every token in the loss, once per optimiser step over the global batch."""

    home = ("learning.algorithm.loss_aggregation",)
    asks = frozenset({"batch", "max_completion_length"})


class LossTermUse(Use):
    """A further term of the loss with its own mask and denominator."""

    home = ("learning.algorithm.loss_terms",)
    asks = MOVING | {"log_ratio_T", "surprise_T"}
    coef: Number
    """Factor of the term; a number schedule is allowed."""
    loss_aggregation: LossAggregationUse | None = None
    """Weights of the term's tokens; null: the stage's `loss_aggregation`."""
    token_mask: list[TokenMaskUse] | None = None
    """Selects the tokens of the term; null: the stage's `token_mask`."""


class ControllerUse(Use):
    """Computes a number from the last iteration's metrics, or from the batch that is about to be trained on."""

    home = ("learning.algorithm.controllers",)
    asks = MOVING | {"metrics", "state"}


class EngineUse(Use):
    """Turns prompts into tokens."""

    home = ("learning.generation.engines",)
    takes = ("policy",)
    asks = frozenset({"account"})
    member = "Engine"


class ContextUse(Use):
    """Decides what the model sees at its next turn of an episode."""

    home = ("learning.environments.context_policies",)
    asks = frozenset({"prompt", "turns", "tokens", "row"})


class Inline(Schema):
    """How an environment's answers continue the model's own message."""

    stop: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Texts that end a turn besides the end token, such as `</search>`: the environment is asked, and the model goes
    on behind its answer."""
    text: str = "{observation}"
    """Form of an answer, such as `<information>{observation}</information>`."""


class EnvUse(Use):
    """Answers the model's turns, so that a completion is an episode of several."""

    home = ("learning.environments", "learning.toy_tasks.environments")
    takes = ()
    member = "Environment"
    max_turns: int = Field(default=8, ge=1)
    """Most turns of the model in an episode; it then ends as truncated. A sample request may set a lower limit."""
    workers: int = Field(default=8, ge=1)
    """Number of environment steps that run concurrently."""
    order: Literal["each", "together"] = "each"
    """`each`: an episode continues as soon as its own answer is there; `together`: all wait for the slowest answer."""
    steps_per_answer: int | None = Field(default=8, ge=0)
    """With `each`: fixed number of decode steps from the end of a turn to its answer; a late answer is waited for, so
    that runs are bit-identical; null: the answer is used as soon as it is there."""
    decode_seconds: float | None = Field(default=None, gt=0)
    """Simulated seconds per decode step: time is then simulated, an answer takes the seconds that the environment
    reports, and nothing really waits; null: real time."""
    context: ContextUse | None = None
    """What the model sees at each turn, for example only the last turns, or a memory that it writes; null: the whole
    episode. With it `max_completion_length` limits the turns and answers of each context."""
    inline: Inline | None = None
    """Answers continue the message of the model after a stop text, without a message of the user in between; null:
    every answer is a message of the user. A turn that ends with the end token is answered by a message in any case."""


class ToolUse(Use):
    """A tool that a model may call in an environment."""

    home = ("learning.tools.calls", "learning.tools.corpora", "learning.tools.mcp_servers")
    takes = ("query",)
    asks = frozenset({"row", "rng"})
    called: str = Field(default="", pattern=r"^([A-Za-z_]\w*)?$")
    """The name by which the model calls it; empty: that of the function. One function can so be several tools."""


class MergeMethodUse(Use):
    """Merges one tensor of several models."""

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
    """Generates a model's samples of a problem."""

    home = (
        "learning.evaluation.searches",
        "learning.evaluation.state_searches",
        "learning.evaluation.guided_attempts",
        "learning.evaluation.revisions",
        "learning.evaluation.posterior_reasons",
    )
    takes = ("problems", "ask", "score")


class DuelUse(Use):
    """Probability from 0 to 1 that the first of two completions is preferred to the second."""

    home = ("learning.preference.duels",)
    takes = ("row", "first", "second")


class FunctionUse(Use):
    """Any user-defined function, by import path."""

    takes = ("context",)


class ForeignUse(Use):
    """A function with another library's signature, by import path; the function that takes it calls it as it is."""

    member = "function"  # stays a description: nothing is bound to it

"""One padding-free forward pass over a forest of segments: a shared prefix is stored and computed once.

A log-probability is that of token t given its path, stored AT t: the first token of a child is predicted by the last
token of its parent; the first token of a root has no prediction (0).

Shapes: M packed tokens, S segments, S1 = S + 1 borders, B needed tokens, C width of the model, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from learning.models.forwards import (
    FEWEST_ROWS,
    attention_by,
    describe_linear_layers,
    evaluation_mode,
    narrowed_last_mlp,
    recomputed_mlps,
    unwrap,
)
from learning.models.limited_attention import TILE, ForestMasks
from learning.models.padded import compute_logits, examine_own_forward, get_body, padded_hidden, padded_logits
from learning.models.reduced import describe_unsupported_attention, in_float32, is_close, narrow_windows, reduced
from learning.models.segments import BOTH, NAME, VARLEN, Layout, make_layout, measure_chains
from learning.models.token_statistics import score_rows
from schemas.errors import StepError

UNFIT = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
"""Exceptions of architectures that do not support the segment attention or its arguments."""
LOGITS_PER_CHUNK = 1 << 24
"""Largest number of logits in memory at once; more are computed in chunks and recomputed in the backward pass."""


@dataclass(frozen=True)
class Packed:
    """A forest of segments in one row: parents come before their children."""

    input_ids_M: Tensor
    position_ids_M: Tensor
    cu_seqlens_S1: Tensor
    parent_S: Tensor

    @cached_property
    def layout(self) -> Layout:
        """Return the division of the forest into attention blocks."""
        device = self.input_ids_M.device
        borders, parents = self.cu_seqlens_S1.tolist(), self.parent_S.tolist()
        return make_layout(borders, parents, on_cpu=device.type == "cpu").to(device)

    @cached_property
    def masks(self) -> ForestMasks:
        """Return the masks of the forest for FlexAttention."""
        return ForestMasks(self.cu_seqlens_S1, self.parent_S.tolist(), self.position_ids_M)

    @cached_property
    def source_M(self) -> Tensor:
        """Return the packed index of the token that predicts each token; −1 for the first of a root."""
        starts, parents = self.cu_seqlens_S1.tolist(), self.parent_S.tolist()
        source_M = torch.arange(-1, starts[-1] - 1)
        for segment, parent in enumerate(parents):
            while parent >= 0 and starts[parent] == starts[parent + 1]:
                parent = parents[parent]
            if starts[segment] < starts[segment + 1]:
                source_M[starts[segment]] = starts[parent + 1] - 1 if parent >= 0 else -1
        return source_M.to(self.input_ids_M.device)

    def to(self, device: torch.device | str) -> "Packed":
        """Return a copy on another device."""
        return replace(self, input_ids_M=self.input_ids_M.to(device), position_ids_M=self.position_ids_M.to(device))


def pack(segments: list[list[int]], parents: list[int]) -> Packed:
    """Lay segments of token ids end to end; `parents[i]` < i is the index of a segment's parent, −1 for a root.

    Raise ValueError if a parent does not come before its child.
    """
    if len(segments) != len(parents) or any(not -1 <= parent < child for child, parent in enumerate(parents)):
        raise ValueError("every segment needs a parent that comes before it, or -1")
    lengths = [len(s) for s in segments]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    before = measure_chains(lengths, parents)
    positions = [torch.arange(b, b + n) for b, n in zip(before, lengths, strict=True)]
    return Packed(
        torch.tensor([token for s in segments for token in s], dtype=torch.long),
        torch.cat(positions) if positions else torch.zeros(0, dtype=torch.long),
        starts,
        torch.tensor(parents, dtype=torch.long),
    )


Body = Literal["forest", "varlen", "padded"]
"""How hidden states are computed: over the forest, with FlexAttention as its attention (`varlen`), or by transformers'
own forward over padded rows.
"""


def packed_hidden(model: Any, packed: Packed, rows_B: Tensor | None = None, *, body: Body | None = None) -> Tensor:
    """Return the last hidden state of every token (M, C), each seeing only its own path.

    With `rows_B` only these packed tokens are guaranteed to be correct. `model` is a transformers model, or one wrapped
    by peft. The forward pass is `body`, or the fastest one that is exact for the model.
    """
    model = unwrap(model)
    body = body or choose_body(model, packed)
    if body == "padded":
        return padded_hidden(model, packed)
    return forest_hidden(model, packed, rows_B) if body == "forest" else varlen_hidden(model, packed, rows_B)


def forest_hidden(model: Any, packed: Packed, rows_B: Tensor | None = None) -> Tensor:
    """Return hidden states (M, C) from one forward pass over the forest, in which a shared prefix is computed once.

    Raise StepError if the model has dropout of attention.
    """
    return _hidden(model, packed, rows_B, NAME, layout=packed.layout)


def varlen_hidden(model: Any, packed: Packed, rows_B: Tensor | None = None) -> Tensor:
    """Return the same from FlexAttention: on a GPU without keeping scores, on a CPU without a backward pass."""
    return _hidden(model, packed, rows_B, VARLEN, masks=packed.masks)


def _hidden(model: Any, packed: Packed, rows_B: Tensor | None, attention: str, **given: Any) -> Tensor:
    """Return hidden states (M, C) from one forward pass over the packed row, with what an attention needs."""
    size = len(packed.input_ids_M)
    narrow, lean = narrowed_last_mlp(model, rows_B, size), recomputed_mlps(model, size, packed.layout.all_scores)
    with attention_by(model.config, attention), lean, narrow:
        out = get_body(model)(
            input_ids=packed.input_ids_M[None], position_ids=packed.position_ids_M[None], use_cache=False, **given
        )
    return out.last_hidden_state.squeeze(0)


def packed_logprobs(
    model: Any,
    packed: Packed,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    needed_M: Tensor | None = None,
    body: Body | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probability (M,) of every token given its path, and with `entropy` that of its distribution."""
    followed = ("lp", "entropy") if entropy else ("lp",)
    given: Any = {"followed": followed, "temperature": temperature, "needed_M": needed_M, "body": body}
    statistics = packed_statistics(model, packed, **given)
    return statistics["lp"], statistics.get("entropy")


def packed_statistics(
    model: Any,
    packed: Packed,
    *,
    followed: tuple[str, ...] = ("lp",),
    watched: tuple[str, ...] = (),
    temperature: float = 1.0,
    needed_M: Tensor | None = None,
    kept_M: Sequence[str] | None = None,
    body: Body | None = None,
) -> dict[str, Tensor]:
    """Return statistics of every token given its path, of the distribution softmax(logits / temperature): (M,) each.

    `lp` the token's log-probability, `entropy` in nats, `lp_mean` the mean log-probability over the vocabulary,
    `collision` the probability that two draws are equal, Σ p², `likeliest` 1 for the likeliest token, else 0.
    Gradients flow only through the `followed` ones. Tokens outside the boolean `needed_M` need no logits and are 0.
    `kept_M` are records of the tokens that each one was sampled from (`learning.samples.kept_tokens`): the distribution
    is then that over these tokens; `lp_mean` has no finite value there.
    """
    plain = unwrap(model)
    choice = choose_forward(plain)
    wanted_M = packed.source_M >= 0
    at_B = (wanted_M if needed_M is None else wanted_M & needed_M.to(wanted_M.device)).nonzero()[:, 0]
    sources_B = packed.source_M[at_B]
    if choice.head == "own":
        rows_BC, head = padded_logits(plain, packed).index_select(0, sources_B), nn.Identity()
        vocabulary = rows_BC.shape[1]
    else:
        rows_BC = packed_hidden(plain, packed, sources_B.unique(), body=body).index_select(0, sources_B)
        head, vocabulary = partial(compute_logits, plain), plain.get_output_embeddings().weight.shape[0]
    ids_B = packed.input_ids_M[at_B]
    kept_B = None if kept_M is None else [kept_M[int(at)] for at in at_B.tolist()]
    step = (most := max(1, LOGITS_PER_CHUNK // vocabulary)) - most % FEWEST_ROWS or most  # multiples are not padded
    pieces = []
    for number, (rows, ids) in enumerate(zip(rows_BC.split(step), ids_B.split(step), strict=True)):
        kept = None if kept_B is None else kept_B[number * step : (number + 1) * step]
        inputs = (rows, ids, head, temperature, followed, watched, kept)
        again = len(rows_BC) > step and torch.is_grad_enabled()
        pieces.append(
            checkpoint(score_rows, *inputs, use_reentrant=False, preserve_rng_state=False)
            if again
            else score_rows(*inputs)
        )
    columns = [torch.cat(column) for column in zip(*pieces, strict=True)]
    zeros_M = columns[0].new_zeros(len(packed.input_ids_M))
    names = zip((*followed, *watched), columns, strict=True)
    return {name: zeros_M.index_put((at_B,), column_B) for name, column_B in names}


@dataclass(frozen=True)
class Forward:
    """The forward pass that is exact for a model, and the reason against the faster one."""

    body: Body
    head: Literal["shared", "own"]
    """`own`: only the model's own forward gives its logits."""
    reason: str = ""


_CHOSEN: WeakKeyDictionary[Any, Forward] = WeakKeyDictionary()


def choose_forward(model: Any) -> Forward:
    """Return the fastest forward pass that agrees with the model's own; determined once per model.

    Both are compared on a few tokens with the model's weights and narrowed windows, so that unknown architectures are
    handled correctly. `forest` is rejected if the config names layers or limits that it does not compute, if it raises,
    or if it differs from the model's own forward pass by more than rounding, as it does when paths see each other.
    """
    if model not in _CHOSEN:
        _CHOSEN[model] = _examine(model)
    return _CHOSEN[model]


MANY_SCORES = 1 << 26
"""Scores of all heads in blocks of children from which FlexAttention is used on a GPU: 0.4 GB in each layer."""
_VARLEN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Why FlexAttention is not exact for a model that wanted it; empty if it is."""


def choose_body(model: Any, packed: Packed) -> Body:
    """Return the forward pass for a batch: the one that is exact for the model, or `varlen` where it needs less.

    FlexAttention is used on a GPU, for models that `forest` is exact for: where windows, caps or sinks are computed,
    which `forest` does path by path, and where blocks of completions would keep more than MANY_SCORES. On a CPU torch
    has no backward pass for it, and `forest` keeps no scores of long paths.
    """
    choice = choose_forward(model)
    wanted = choice.body == "forest" and _is_on_gpu(packed) and _wants_varlen(model, packed.layout)
    return "varlen" if wanted and not explain_varlen_misfit(model) else choice.body


def _is_on_gpu(packed: Packed) -> bool:
    return packed.input_ids_M.is_cuda


def _wants_varlen(model: Any, layout: Layout) -> bool:
    """Return whether attention over a forest is limited, or would keep many scores."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or layout.longest
    limited = window < layout.longest or bool(getattr(config, "attn_logit_softcapping", None))
    scores = layout.scores * config.to_dict().get("num_attention_heads", 1)
    return limited or scores > MANY_SCORES or config.model_type == "gpt_oss"


def explain_varlen_misfit(model: Any) -> str:
    """Return why FlexAttention is not exact for a model, empty if it is; determined once per model.

    Every layer's attention over a probe of several tiles is computed by it and as in `forest`, forward and backward.
    """
    if model not in _VARLEN:
        _VARLEN[model] = _varlen_differs(model)
    return _VARLEN[model]


@torch.no_grad()
def _varlen_differs(model: Any) -> str:
    probe = _probe(model.get_input_embeddings().weight.shape[0], (200, 150, 70)).to(model.device)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or probe.layout.longest
    if positions < probe.layout.longest:
        return f"has only {positions} positions"
    pairs: list[tuple[Tensor, Tensor]] = []
    try:
        with evaluation_mode(model), narrow_windows(model, TILE), reduced(model):
            _hidden(model, probe, None, BOTH, layout=probe.layout, masks=probe.masks, pairs=pairs)
    except UNFIT as error:
        return f"FlexAttention fails ({type(error).__name__})"
    return "" if all(is_close(*pair) for pair in pairs) else "FlexAttention gives other numbers"


def describe_forward(model: Any) -> dict[str, str]:
    """Return notes for a step's metrics: the forward pass that was chosen, why, and the products of linear layers.

    Empty if the step made no forward pass for training.
    """
    choice, misfit = _CHOSEN.get(unwrap(model)), _VARLEN.get(unwrap(model))
    if choice is None:
        return {}
    name = "forest, varlen for large batches" if misfit == "" else choice.body
    why = choice.reason or "agrees with its own forward on its weights"
    note = f"{name} ({why}; no varlen: {misfit})" if misfit else f"{name} ({why})"
    return {"forward": note} | describe_linear_layers(unwrap(model))


@torch.no_grad()
def _examine(model: Any) -> Forward:
    """Compare the forward passes on a prefix with two completions; return the fastest exact one.

    A model that computes in bfloat16 is compared in float32, where rounding hides nothing, and coarsely as it
    computes. Raise StepError if the model is not causal, or cannot compute in its precision.
    """
    with evaluation_mode(model), narrow_windows(model, NARROW), reduced(model):
        probe = _probe(model.get_input_embeddings().weight.shape[0]).to(model.device)
        with in_float32(model) as rounds:
            choice = _compare(model, probe)
        if not rounds:
            return choice
        truth_MC, _ = examine_own_forward(model, probe, _prefix(probe))
        reason = "" if choice.reason else _forest_differs(model, probe, truth_MC, proven=True)
        return Forward("padded", choice.head, f"{model.config.model_type}: {reason}") if reason else choice


def _prefix(probe: Packed) -> Packed:
    return pack([probe.input_ids_M[: int(probe.cu_seqlens_S1[1])].tolist()], [-1])


def _compare(model: Any, probe: Packed) -> Forward:
    truth_MC, plain_head = examine_own_forward(model, probe, _prefix(probe))
    reason = describe_unsupported_attention(model.config) or _forest_differs(model, probe, truth_MC)
    if not (plain_head or reason):
        reason = "only its own forward gives its logits"
    head: Literal["shared", "own"] = "shared" if plain_head else "own"
    return Forward("padded", head, f"{model.config.model_type}: {reason}") if reason else Forward("forest", head)


NARROW = 4
"""Keys in the windows while forward passes are compared: fewer than the probe's tokens."""


def _probe(vocabulary: int, lengths: tuple[int, int, int] = (6, 7, 4)) -> Packed:
    """Return a prefix with two children."""
    spread = [[(7 + 31 * i + 17 * s) % vocabulary for i in range(n)] for s, n in enumerate(lengths)]
    return pack(spread, [-1, 0, 0])


def _forest_differs(model: Any, probe: Packed, truth_MC: Tensor, *, proven: bool = False) -> str:
    """Return why the forward pass over a forest differs from the model's own; empty if it does not."""
    try:
        found_MC = forest_hidden(model, probe)
    except StepError as error:
        return str(error)
    except UNFIT as error:
        return f"its attention takes no layout of segments ({type(error).__name__})"
    return "" if is_close(found_MC, truth_MC, proven=proven) else "its own forward gives other numbers"

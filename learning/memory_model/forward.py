"""What a forward pass of packed tokens keeps for its backward pass, as our code and transformers write it.

Counted are the tensors that autograd saves, each once, and the largest temporary tensor of an operation.
Shapes: M packed tokens, C width, I inner width, H query heads, K key-value heads, D head size, V vocabulary, N families
of G children of L tokens after a chain of P, B tokens that need logits, E attention scores.
"""

from dataclasses import dataclass, field
from functools import cached_property

from learning.memory_model.shape import Shape

LOGITS_PER_CHUNK, FEWEST_ROWS = 1 << 24, 16
"""As in `learning.models.packed`."""
ROW, SPAN = (48, 512), 64
"""Lengths and spans of `learning.models.cpu_attention`."""
LONG_SCORES = 4096
"""As in `learning.models.segments`."""
MANY_SCORES = 1 << 26
"""As in `learning.models.packed`."""
MLP_ROWS, SCORES_PER_MLP = 4096, 5
"""As in `learning.models.forwards`."""
HALF = 2
"""Bytes of a number in bfloat16."""
FULL = 4
"""Bytes of a number in float32, which norms, probabilities and log-probabilities have at least."""


@dataclass(frozen=True)
class Pass:
    """The tokens of one forward pass: `roots` as (how many, length), `families` as (N, G, L, P)."""

    roots: tuple[tuple[int, int], ...]
    families: tuple[tuple[int, int, int, int], ...] = ()
    needed: int = 0
    """B, tokens that need logits; 0: none does."""

    @cached_property
    def children(self) -> int:
        """Tokens of all children."""
        return sum(n * g * length for n, g, length, _ in self.families)

    @cached_property
    def tokens(self) -> int:
        """M."""
        return self.children + sum(n * length for n, length in self.roots)


@dataclass(frozen=True)
class Precision:
    """Bytes of a weight, where attention is computed, and what is trained."""

    weight: int = FULL
    on_cpu: bool = False
    rank: int = 0
    """Of LoRA's matrices; 0: all weights are trained."""
    mixed: bool = False
    """Whether matrices are multiplied in bfloat16 although weights are in float32."""

    @property
    def number(self) -> int:
        """Bytes of a number between two matrices of a block."""
        return HALF if self.mixed else self.weight


@dataclass(frozen=True)
class Forward:
    """Bytes that a pass holds."""

    shape: Shape
    tokens: Pass
    how: Precision = field(default_factory=Precision)
    checkpointing: bool = False

    @cached_property
    def _input_bytes(self) -> int:
        """Bytes of a number that goes into a matrix; adapters take theirs in float32, once for every matrix."""
        return 0 if self.how.rank and self.how.weight != FULL else self.how.number

    @cached_property
    def _norm(self) -> int:
        """Bytes for a number that goes through RMSNorm: x in float32, x̂ for the weight's gradient, y."""
        if self.shape.layer_norm:
            return self.how.weight + self._input_bytes
        return FULL + (0 if self.how.rank else self.how.weight) + self._input_bytes

    @cached_property
    def _norms(self) -> int:
        """Bytes for a number of the width in a layer: two norms; mixed, a copy for each of five matrices."""
        return 2 * self._norm + (3 * HALF if self.how.mixed else 0)

    @cached_property
    def _copies(self) -> int:
        """In mixed precision the matrices of a layer are kept in bfloat16 for the backward pass."""
        return HALF * sum(a * b for a, b in self.shape.linears) if self.how.mixed else 0

    @cached_property
    def _adapters(self) -> int:
        """Bytes a token in a layer with LoRA: between the two matrices, and what goes into the first."""
        if not self.how.rank:
            return 0
        sides = [a for a, _ in self.shape.linears[: 7 if self.shape.gated else 6]]
        return FULL * (len(sides) * self.how.rank + (0 if self._input_bytes else sum(sides)))

    def _block(self, tokens: int) -> int:
        """Return the feed-forward block of a layer: gate, its activation, up and their product, or GELU's parts."""
        shape, size = self.shape, self.how.number
        inner = ((4 if shape.gated else 5) - (0 if self._input_bytes else 1)) * shape.inner
        if shape.experts:  # each token's row once for every expert that it uses, with what they put out
            return tokens * size * (shape.active * (inner + 2 * shape.width) + 2 * shape.experts)
        return tokens * size * inner

    @cached_property
    def _long(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]:
        """Roots and families without scores: on a CPU by torch's fused kernel, on a GPU all by FlexAttention."""
        if not self.how.on_cpu:
            scores = self.shape.heads * sum(n * g * length * (p + length) for n, g, length, p in self.tokens.families)
            return (list(self.tokens.roots), list(self.tokens.families)) if scores > MANY_SCORES else ([], [])
        roots = [(n, length) for n, length in self.tokens.roots if length > ROW[1]]
        return roots, [shape for shape in self.tokens.families if shape[2] * (shape[3] + shape[2]) >= LONG_SCORES]

    @cached_property
    def _paths(self) -> int:
        """Bytes of attention of long paths: queries, keys, values, and log-sum-exps; outputs if others are beside."""
        roots, families = self._long
        tokens = sum(n * length for n, length in roots) + sum(n * g * length for n, g, length, _ in families)
        out = 0 if tokens == self.tokens.tokens and self.how.on_cpu else self.shape.queries
        size = self.how.number
        return tokens * ((self.shape.queries + 2 * self.shape.keys + out) * size + self.shape.heads * FULL)

    def _roots(self) -> int:
        """Return attention of roots: on a CPU row by row with its probabilities kept, else by torch's kernel."""
        shape, size, total = self.shape, self.how.number, 0
        for number, length in self.tokens.roots:
            if (number, length) in self._long[0]:
                continue
            stored = number * length * size
            if not (self.how.on_cpu and ROW[0] <= length <= ROW[1]):
                total += stored * (2 * shape.queries + 2 * shape.keys) + number * length * shape.heads * FULL
                continue
            repeated = shape.queries if shape.heads != shape.kv_heads else shape.keys
            total += stored * (shape.queries + 2 * repeated)
            if size == FULL:
                spans = max(1, round(length / SPAN))
                total += number * shape.heads * size * (length * length * (spans + 1) // (2 * spans))
            else:  # queries and keys once more for their scale, and probabilities in float32
                total += stored * (shape.queries + repeated) + number * shape.heads * FULL * length * length
        return total

    @cached_property
    def _short(self) -> list[tuple[int, int, int, int]]:
        """Families in blocks."""
        return [shape for shape in self.tokens.families if shape not in self._long[1]]

    @cached_property
    def scores(self) -> int:
        """E: scores of children in blocks to their chains and to themselves."""
        return sum(n * g * length * (p + length) * self.shape.heads for n, g, length, p in self._short)

    def _families(self) -> int:
        """Return attention of children in blocks: queries, keys and values, probabilities, and these cut in two."""
        shape, size = self.shape, self.how.number
        chains = sum(n * p for n, _, _, p in self._short)
        children = sum(n * g * length for n, g, length, _ in self._short)
        stored = children * (shape.queries + 2 * shape.keys) + chains * 2 * shape.keys
        return stored * size + self.scores * (FULL + size)

    @cached_property
    def attention(self) -> int:
        """Everything between a layer's norms and its feed-forward block."""
        shape = self.shape
        normed = shape.head_norms or shape.wide_norms
        of_head = FULL + (0 if self.how.rank else self.how.number)
        heads = of_head * (shape.queries + shape.keys) if normed else 0
        out = self._input_bytes * shape.queries
        return self.tokens.tokens * (heads + out + self._adapters) + self._roots() + self._families() + self._paths

    @cached_property
    def _windowed(self) -> int:
        """Layers whose window is shorter than the longest path; the others attend as if they had none."""
        paths = [length for _, length in self.tokens.roots] + [p + length for _, _, length, p in self.tokens.families]
        return self.shape.windowed if self.shape.window < max(paths, default=0) else 0

    @cached_property
    def _less_by_windows(self) -> int:
        """Bytes that attention keeps less in a windowed layer: queries, keys, values, log-sum-exps and no scores."""
        shape, size = self.shape, self.how.number
        stored = self.tokens.tokens * ((shape.queries + 2 * shape.keys) * size + shape.heads * FULL)
        return self._roots() + self._families() + self._paths - stored

    @cached_property
    def _recomputes(self) -> bool:
        """Whether feed-forward blocks keep only their inputs, since attention over long paths costs far more."""
        shape, tokens = self.shape, self.tokens
        scores = sum(n * length * (length + 1) // 2 for n, length in tokens.roots)
        scores += sum(n * g * length * (2 * p + length + 1) // 2 for n, g, length, p in tokens.families)
        scores = min(scores, tokens.tokens * shape.window) if shape.window else scores
        block = tokens.tokens * shape.inner * shape.width * (3 if shape.gated else 2)
        return not (shape.experts or self.checkpointing) and 2 * shape.width * scores >= SCORES_PER_MLP * block

    def layer(self, tokens: int | None = None) -> int:
        """Return a layer, without a window if any has none, whose feed-forward block works on some of the tokens."""
        block = 0 if self._recomputes else self._block(self.tokens.tokens if tokens is None else tokens)
        less = self._less_by_windows if self._windowed == self.shape.layers else 0
        return self.tokens.tokens * self.shape.width * self._norms + self.attention - less + block + self._copies

    @cached_property
    def saved(self) -> int:
        """All layers and the last norm; with checkpointing only the input of every layer but the last."""
        shape, tokens, size = self.shape, self.tokens, self.how.weight
        ends = shape.width * (tokens.tokens * self._norm + min(tokens.needed, tokens.tokens) * size)
        some = tokens.needed if 0 < tokens.needed <= 0.9 * tokens.tokens else tokens.tokens
        stored = tokens.tokens * shape.width * size if self.checkpointing else self.layer()
        mixed = 0 < self._windowed < shape.layers and not self.checkpointing
        less = self._windowed * self._less_by_windows if mixed else 0
        return ends + (shape.layers - 1) * stored + self.layer(some) - less

    @cached_property
    def backward(self) -> int:
        """Bytes besides the saved tensors while a layer's gradients are computed."""
        shape, size, tokens = self.shape, self.how.number, self.tokens.tokens
        inner = shape.inner * max(shape.active, 1)
        rows = min(tokens, MLP_ROWS) if self._recomputes else tokens
        block = 3 * rows * inner * size + (self._block(rows) if self._recomputes else 0)
        scores = 0 if self._windowed == shape.layers else self.scores
        attention = max(0, 3 * scores * FULL - (0 if self._recomputes else self._block(tokens)))
        return max(block, attention) + 2 * tokens * shape.width * size

    @cached_property
    def chunks(self) -> int:
        """How many times logits are computed."""
        return -(-self.tokens.needed // self._rows_at_once)

    @property
    def _rows_at_once(self) -> int:
        most = max(1, LOGITS_PER_CHUNK // self.shape.vocabulary)
        return most - most % FEWEST_ROWS or most

    @property
    def logits(self) -> int:
        """Log-probabilities of the largest chunk and their gradient."""
        rows = min(self.tokens.needed, self._rows_at_once)
        return 2 * rows * self.shape.vocabulary * FULL

    @property
    def glance(self) -> int:
        """The most that a pass without a gradient holds at a time."""
        shape, size, tokens = self.shape, self.how.weight, self.tokens.tokens
        layer = tokens * (3 * shape.width + 3 * shape.inner * max(shape.active, 1)) * size
        attention = self._families() + self._paths + self.scores * FULL
        attention += tokens * (3 * shape.queries + 2 * shape.keys) * size
        return max(layer, attention, self.logits)

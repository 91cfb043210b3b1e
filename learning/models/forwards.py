"""How a model's modules compute: bfloat16 autocast, gradient checkpointing, and products of linear layers by oneDNN.

All are set on modules, so that training, sampling and copies of the model agree; parameter names do not change.

On CPUs that are not Intel's, MKL uses AVX2 even where there is AVX-512; oneDNN, which torch contains too, uses what a
CPU has. Both compute in float32 and differ by rounding. oneDNN prepares a kernel for every shape, which takes about a
millisecond and a megabyte, so rows are multiplied in pieces of few sizes, and the rest by MKL. Products in bfloat16 are
oneDNN's anyway. It never frees the code of a kernel, which lies scattered in the memory that tensors leave, so that a
process grows with each new number of rows: zeros fill them up to few numbers, on which no bit of a product depends.

Shapes: B rows, K inputs, N outputs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from schemas.training import Training

MLP_ROWS = 4096
"""Tokens of a feed-forward block that are recomputed together."""
SCORES_PER_MLP = 5
"""Attention costs at least this many times the feed-forward block where the latter is recomputed.

By the number of operations, recomputing takes 4 % more time there.
"""
WORTH_LEAVING_OUT = 0.9
"""Share of needed tokens above which the last layer computes all of them, since selecting some has a cost too."""
PIECES = (512, 128, 64)
"""Rows of a piece, for each thread."""
SMALLEST_WEIGHT = 1 << 15
"""Elements of the smallest weight for which oneDNN is used; with fewer, preparing its calls takes most of the gain."""
SMALLEST_PRODUCT = 1 << 22
"""Rows times elements of the weight in the smallest piece, for each thread."""
LARGEST_CHECKED = 1 << 22
"""Elements of a weight that are compared; outputs are independent, so the first ones are enough."""
ROUNDING = 2e-5
"""Largest difference from the layer's own product, relative to the largest value."""
FEWEST_ROWS = STEPS = 16
"""Rows of which a padded number is a multiple; padded numbers between a power of two from 256 on and the next."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch off every module in training mode, such as the dropout of adapters, and the same ones on again."""
    active = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in active:
            module.training = True


def unwrap(model: Any) -> Any:
    """Return the transformers model inside peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def without_adapters(model: Any) -> AbstractContextManager[None]:
    """Return a context in which a model computes without its adapters, if it has any."""
    return model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()


def apply_compute_options(model: nn.Module, training: Training) -> None:
    """Apply the options `bf16` and `gradient_checkpointing` to a model."""
    plain = unwrap(model)
    if training.bf16:
        for module in (plain.base_model, plain.get_output_embeddings()):
            if module is not None:
                module.forward = MethodType(_in_bfloat16, module)
    if training.gradient_checkpointing:
        # The last block's backward pass comes first: recomputing it would save no memory.
        for block in find_blocks(model)[:-1]:
            block.forward = MethodType(recompute_block, block)


@contextmanager
def full_precision(model: nn.Module) -> Iterator[bool]:
    """Compute in the precision of the weights for a moment; yield whether the model else computes in bfloat16."""
    mixed = [m for m in model.modules() if getattr(m.__dict__.get("forward"), "__func__", None) is _in_bfloat16]
    for module in mixed:
        del module.forward
    try:
        yield bool(mixed)
    finally:
        for module in mixed:
            module.forward = MethodType(_in_bfloat16, module)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformer, in order; empty if transformers does not mark them."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _in_bfloat16(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    device = next(self.parameters()).device.type
    forward: Any = multiply_padded if type(self) is nn.Linear else type(self).forward
    with torch.autocast(device, torch.bfloat16):
        return forward(self, *args, **kwargs)


def recompute_block(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a block and keep only its inputs; the backward pass recomputes it (Chen et al. 2016, arXiv 1604.06174)."""
    if not torch.is_grad_enabled():
        return type(self).forward(self, *args, **kwargs)
    how: dict[str, Any] = {"use_reentrant": False, "context_fn": _as_now(self)}
    return checkpoint(type(self).forward, self, *args, **how, **kwargs)


def _as_now(block: nn.Module) -> Callable[[], tuple[AbstractContextManager, AbstractContextManager]]:
    """Return contexts of the forward pass and of its recomputation, which uses the same attention implementation."""
    config: Any = next(module.config for module in block.modules() if hasattr(module, "config"))
    name = config._attn_implementation
    return lambda: (nullcontext(), attention_by(config, name))


@contextmanager
def attention_by(config: Any, name: str) -> Iterator[None]:
    """Switch a model's config to an attention implementation, and back afterwards."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def recomputed_mlps(model: Any, tokens: int, scores: int) -> Iterator[None]:
    """Let feed-forward blocks keep only their inputs where paths are so long that attention costs far more.

    A pass over `tokens` computes `scores` for every head. The intermediate values of these blocks are half of what a
    layer keeps; they are computed again in the backward pass, some rows at a time. A mixture of experts keeps them,
    because its router counts tokens.
    """
    blocks = find_blocks(model) if torch.is_grad_enabled() else []
    parts = [getattr(block, "mlp", None) for block in blocks if not _replaces_forward(block, recompute_block)]
    mlps = [mlp for mlp in parts if isinstance(mlp, nn.Module) and not hasattr(mlp, "experts")]
    if not mlps or not _costs_little(mlps[-1], model.config.get_text_config(), tokens, scores):
        yield
        return
    before = [vars(mlp).get("forward") for mlp in mlps]
    for mlp in mlps:
        mlp.forward = partial(_recompute_rows, mlp.forward)
    try:
        yield
    finally:
        for mlp, forward in zip(mlps, before, strict=True):
            if forward is None:
                del mlp.forward
            else:
                mlp.forward = forward


def _costs_little(mlp: nn.Module, config: Any, tokens: int, scores: int) -> bool:
    """Return whether attention, with heads as wide as the model together, costs SCORES_PER_MLP times a block."""
    window = getattr(config, "sliding_window", None)
    scores = min(scores, tokens * window) if window else scores
    return 2 * config.hidden_size * scores >= SCORES_PER_MLP * tokens * sum(p.numel() for p in mlp.parameters())


def _recompute_rows(forward: Callable[[Tensor], Tensor], rows_BMC: Tensor) -> Tensor:
    """Return a feed-forward block's outputs, computed in pieces that keep only their inputs."""
    pieces = [checkpoint(forward, rows, use_reentrant=False) for rows in rows_BMC.split(MLP_ROWS, 1)]
    return torch.cat(pieces, 1)


@contextmanager
def narrowed_last_mlp(model: Any, rows_B: Tensor | None, size: int) -> Iterator[None]:
    """Restrict the last layer's feed-forward block to rows_B of `size` tokens; the outputs of the others are not used.

    A mixture of experts is not restricted, because its router counts tokens.
    """
    layers = getattr(model.base_model, "layers", None)
    block = getattr(layers[-1], "mlp", None) if layers else None
    if rows_B is None or block is None or hasattr(block, "experts") or len(rows_B) > WORTH_LEAVING_OUT * size:
        yield
        return
    before = block.register_forward_pre_hook(lambda _, given: (given[0].index_select(1, rows_B),))
    after = block.register_forward_hook(
        lambda _, given, out_1BC: out_1BC.new_zeros(1, size, out_1BC.shape[2]).index_copy(1, rows_B, out_1BC)
    )
    try:
        yield
    finally:
        before.remove()
        after.remove()


# -- linear layers by oneDNN ------------------------------------------------------------------------------------------


@lru_cache
def gains_from_onednn() -> bool:
    """Return whether oneDNN has faster instructions on this machine than MKL: AVX-512 on a CPU that is not Intel's."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    cpu = Path("/proc/cpuinfo")
    vendor = cpu.read_text() if cpu.is_file() else "GenuineIntel"
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "GenuineIntel" not in vendor


def use_onednn(model: nn.Module) -> None:
    """Let the linear layers of a model on a CPU multiply by oneDNN where it is faster and right on their weights.

    One layer of every shape is compared with torch's own product, forward and backward; a shape that differs by more
    than rounding keeps torch's product.
    """
    bound_row_counts(model)
    if not gains_from_onednn():
        return
    verdicts: dict[tuple[torch.Size, bool], bool] = {}
    for module in model.modules():
        if type(module) is not nn.Linear or not _is_fit(module.weight) or module.weight.is_meta:
            continue
        kind = (module.weight.shape, module.bias is None)
        if kind not in verdicts:
            verdicts[kind] = agrees(module)
        if verdicts[kind]:
            module.forward = MethodType(multiply_in_pieces, module)


def bound_row_counts(model: nn.Module) -> None:
    """Let linear layers without a forward pass of their own pad the rows of products in bfloat16 on a CPU."""
    if torch.backends.mkldnn.is_available():
        for module in model.modules():
            if type(module) is nn.Linear and "forward" not in vars(module):
                module.forward = MethodType(multiply_padded, module)


def describe_linear_layers(model: nn.Module) -> dict[str, str]:
    """Return the note `linear_layers` for a step's metrics: how many multiply by oneDNN; empty if none does."""
    if any(_replaces_forward(module, _in_bfloat16) for module in model.modules()):
        return {}
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    count = sum(_replaces_forward(layer, multiply_in_pieces) and _is_fit(layer.weight) for layer in layers)
    return (
        {"linear_layers": f"{count} of {len(layers)} by oneDNN (agrees with torch on their weights)"} if count else {}
    )


def _replaces_forward(module: nn.Module, function: Callable[..., Any]) -> bool:
    """Return whether a function was set as the forward pass of a module."""
    own = vars(module).get("forward")
    return isinstance(own, MethodType) and own.__func__ is function


def multiply_in_pieces(self: nn.Linear, rows: Tensor) -> Tensor:
    """Return the output (…, N) of a linear layer for rows (…, K), by oneDNN where that is faster and possible."""
    weight, bias = self.weight, self.bias
    count = rows.numel() // rows.shape[-1]
    if (
        not any(_cut(count, weight.numel()))
        or not _is_fit(weight)
        or rows.dtype != torch.float32
        or rows.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
    ):
        return multiply_padded(self, rows)
    rows_BK = rows.reshape(count, -1)
    if torch.is_grad_enabled():
        out_BN: Any = _Product.apply(rows_BK, weight, bias)
    else:
        out_BN = multiply(rows_BK, weight, bias)
    return out_BN.view(*rows.shape[:-1], len(weight))


def multiply_padded(self: nn.Linear, rows: Tensor) -> Tensor:
    """Return the output (…, N) of a linear layer for rows (…, K), in bfloat16 on a CPU from a padded number of rows."""
    weight, bias = self.weight, self.bias
    count = rows.numel() // max(1, rows.shape[-1])
    size = _pad(count)
    mixed = rows.is_floating_point() and torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if mixed else rows.dtype
    if size == count or dtype != torch.bfloat16 or rows.device.type != "cpu" or type(weight) is not nn.Parameter:
        return F.linear(rows, weight, bias)
    padded_PK: Any = _Padded.apply(rows.reshape(count, -1), size)
    return F.linear(padded_PK, weight, bias)[:count].view(*rows.shape[:-1], len(weight))


def _pad(count: int) -> int:
    """Return the number of rows that a number is padded to: up to 32 itself: decoding would take up to 60 % longer."""
    step = max(FEWEST_ROWS, (1 << (count - 1).bit_length()) // (2 * STEPS)) if count > 2 * FEWEST_ROWS else 1
    return -(-count // step) * step


class _Padded(torch.autograd.Function):
    """Rows in bfloat16, with rows of zeros below them."""

    @staticmethod
    def forward(ctx: Any, rows_BK: Tensor, size: int) -> Tensor:
        ctx.dtype, ctx.count = rows_BK.dtype, len(rows_BK)
        padded_PK = rows_BK.new_zeros(size, rows_BK.shape[1], dtype=torch.bfloat16)
        padded_PK[: ctx.count] = rows_BK
        return padded_PK

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per input
        ctx: Any, grad_PK: Tensor
    ) -> tuple[Tensor, None]:
        return grad_PK[: ctx.count].to(ctx.dtype), None


def _is_fit(weight: Tensor) -> bool:
    """Return whether a weight is a plain float32 matrix on a CPU, large enough."""
    plain = type(weight) in (nn.Parameter, Tensor) and weight.layout == torch.strided
    return plain and weight.dtype == torch.float32 and weight.numel() >= SMALLEST_WEIGHT


def _cut(count: int, elements: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of rows that oneDNN multiplies, from the first row on; the rows after them are left."""
    threads = torch.get_num_threads()
    start = 0
    for size in (piece * threads for piece in PIECES):
        while count - start >= size and size * elements >= SMALLEST_PRODUCT * threads:
            yield start, start + size
            start += size


def multiply(rows_BK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Return rows · weightᵀ + bias (B, N)."""
    count, pieces = len(rows_BK), list(_cut(len(rows_BK), weight_NK.numel()))
    if pieces == [(0, count)]:
        return _onednn(rows_BK, weight_NK, bias_N)
    out_BN = rows_BK.new_empty(count, len(weight_NK))
    done = 0
    for done_before, done in pieces:
        out_BN[done_before:done] = _onednn(rows_BK[done_before:done], weight_NK, bias_N)
    if done < count:
        out_BN[done:] = F.linear(rows_BK[done:], weight_NK, bias_N)
    return out_BN


def multiply_transposed(grad_BN: Tensor, rows_BK: Tensor) -> Tensor:
    """Return gradᵀ · rows (N, K), the gradient of a weight."""
    pieces = list(_cut(len(rows_BK), grad_BN.shape[1] * rows_BK.shape[1]))
    done = pieces[-1][1] if pieces else 0
    total_NK = grad_BN[done:].t() @ rows_BK[done:]
    for start, end in pieces:
        total_NK += _onednn(grad_BN[start:end].t(), rows_BK[start:end].t())
    return total_NK


def _onednn(rows_BK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows_BK, weight_NK, bias_N, "none", [], "")


class _Product(torch.autograd.Function):
    """Y = XWᵀ + b; dX = dY·W, dW = dYᵀX, db = Σ dY."""

    @staticmethod
    def forward(ctx: Any, rows_BK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows_BK if ctx.needs_input_grad[1] else None, weight_NK)
        return multiply(rows_BK, weight_NK, bias_N)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per output
        ctx: Any, grad_BN: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows_BK, weight_NK = ctx.saved_tensors
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        grad_BN = grad_BN.contiguous()
        return (
            multiply(grad_BN, weight_NK.t()) if for_rows else None,
            multiply_transposed(grad_BN, rows_BK) if for_weight else None,
            grad_BN.sum(0) if for_bias else None,
        )


@torch.no_grad()
def agrees(layer: nn.Linear) -> bool:
    """Return whether all three products by oneDNN equal torch's own up to rounding on a layer's weights."""
    outputs = max(1, LARGEST_CHECKED // layer.in_features)
    weight, bias = layer.weight[:outputs], None if layer.bias is None else layer.bias[:outputs]
    size = next(piece for piece in reversed(PIECES) if piece * weight.numel() >= SMALLEST_PRODUCT)
    generator, count = torch.Generator().manual_seed(0), size * torch.get_num_threads()
    rows_BK, grad_BN = (torch.randn(count, n, generator=generator) for n in reversed(weight.shape))
    pairs = (
        (multiply(rows_BK, weight, bias), F.linear(rows_BK, weight, bias)),
        (multiply(grad_BN, weight.t()), grad_BN @ weight),
        (multiply_transposed(grad_BN, rows_BK), grad_BN.t() @ rows_BK),
    )
    return all(
        bool(((ours - truth).abs().max() <= ROUNDING * truth.abs().max()) & ours.isfinite().all())
        for ours, truth in pairs
    )

"""Linear layers with weights in 4 bits, by bitsandbytes, under adapters: QLoRA (Dettmers et al. 2023, 2305.14314).

Blocks of 64 weights are rounded to 16 values times the block's largest magnitude, always on the CPU, so that a model
has the same weights on every device. Products use the weights converted back to the precision of the model.

One layer of every shape and the model's first layers are compared with plain layers of the same values, forward and
backward, and these values with the original weights. On CPUs with AVX-512 BF16, version 0.50.2 fails this comparison
unless its repacking of weights is switched off: a pass in evaluation mode repacks them, and gradients are then computed
as if it had not.

Shapes: N outputs, K inputs, R rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from learning.models.adapter_targets import BLOCK, list_quantised
from learning.models.forwards import evaluation_mode
from learning.models.packed import UNFIT, pack
from learning.models.padded import padded_hidden
from learning.models.reduced import is_close, reduced
from schemas.errors import StepError

LARGEST_ERROR = 0.2
"""Largest difference of a weight to its value in 4 bits, relative to the largest weight of its block: the 16 values are
at most a third apart."""
GROUP, LARGEST_SCALE_ERROR = 256, 0.01
"""Blocks whose scales are quantised together, and the largest error of one, relative to the largest of them: the 8-bit
values of bitsandbytes are at most 0.0141 apart. For a block of small weights beside large ones it is much."""
ROWS = 5
"""Rows with which a layer is compared."""
MISSING = "load_in_4bit needs bitsandbytes, which is not installed here: pip install 'posttrain[bitsandbytes]'"


class QuantisationOptions(Protocol):
    """How weights are quantised: the options of a stage, or the record of an adapter's base."""

    @property
    def bnb_4bit_quant_type(self) -> str | None:
        """`nf4` or `fp4`."""
        ...

    @property
    def use_bnb_nested_quant(self) -> bool | None:
        """Whether the scales are quantised as well."""
        ...


class TrainedQuantisation(QuantisationOptions, Protocol):
    """How weights are quantised, and which modules keep theirs because they are trained whole."""

    @property
    def modules_to_save(self) -> list[str]:
        """Names or ends of dotted names."""
        ...


def quantise(model: Any, options: TrainedQuantisation, device: str) -> Any:
    """Return a model on a device whose linear layers, but head and modules that are trained whole, have 4-bit weights.

    The model itself is changed, layer by layer, so that no second copy of it is held. Raise StepError without
    bitsandbytes, for a model without such layers, and if results differ from those of plain layers.
    """
    library = _import_bitsandbytes()
    names = list_quantised(model, options.modules_to_save)
    if not names:
        raise StepError("load_in_4bit: no linear layer of this model can be quantised; leave it out")
    verified: set[tuple[torch.Size, bool]] = set()
    for name in names:
        plain = model.get_submodule(name)
        layer = _quantise_layer(library, plain, options).to(device)
        kind = (plain.weight.shape, plain.bias is None)
        if kind not in verified:
            _verify_values(plain, plain_layer(layer), name, nested=bool(options.use_bnb_nested_quant))
            _verify_layer(layer, plain_layer(layer), name)
            verified.add(kind)
        model.set_submodule(name, layer)
    model.is_loaded_in_4bit = True  # peft attaches the adapters of quantised layers
    model.to(device)
    _verify_model(model)
    print(f"load_in_4bit: {len(names)} linear layers have weights in {options.bnb_4bit_quant_type}, compared and exact")
    return model


def round_weights(model: Any, options: QuantisationOptions, saved: Sequence[str]) -> None:
    """Round the weights of a model to those that `quantise` would give it; its layers stay plain.

    Raise StepError without bitsandbytes.
    """
    library = _import_bitsandbytes()
    with torch.no_grad():
        for name in list_quantised(model, saved):
            plain = model.get_submodule(name)
            plain.weight.copy_(plain_layer(_quantise_layer(library, plain, options)).weight)


def _import_bitsandbytes() -> Any:
    try:
        return import_module("bitsandbytes")  # optional, and slow to import
    except ImportError as error:
        raise StepError(MISSING) from error


def _quantise_layer(library: Any, plain: nn.Linear, options: QuantisationOptions) -> Any:
    """Return a layer on the CPU with the weights of a plain one in 4 bits."""
    weight = plain.weight.detach().cpu()
    layer = library.nn.Linear4bit(
        plain.in_features,
        plain.out_features,
        bias=plain.bias is not None,
        compute_dtype=weight.dtype,
        device="meta",
    )
    layer.support_avx512bf16_for_cpu = False
    layer.weight = library.nn.Params4bit(
        weight,
        requires_grad=False,
        blocksize=BLOCK,
        quant_type=options.bnb_4bit_quant_type,
        compress_statistics=bool(options.use_bnb_nested_quant),
        module=layer,
    ).to("cpu")
    if plain.bias is not None:
        layer.bias = nn.Parameter(plain.bias.detach().cpu(), requires_grad=False)
    return layer.train(plain.training)


def plain_layer(layer: Any) -> nn.Linear:
    """Return a plain linear layer with the values of a quantised one."""
    dequantise = import_module("bitsandbytes.functional").dequantize_4bit
    weight_NK = dequantise(layer.weight.data, layer.weight.quant_state).to(layer.compute_dtype)
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(weight_NK, requires_grad=False)
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    return plain


def _verify_values(original: nn.Linear, plain: nn.Linear, name: str, *, nested: bool) -> None:
    """Raise StepError unless the values of a quantised layer are close to the original weights."""
    weight, values = (layer.weight.detach().cpu().float().view(-1, BLOCK) for layer in (original, plain))
    largest = weight.abs().amax(1)
    allowed = LARGEST_ERROR * largest
    if nested:
        groups = nn.functional.pad(largest, (0, -len(largest) % GROUP)).view(-1, GROUP).amax(1)
        allowed = allowed + LARGEST_SCALE_ERROR * groups.repeat_interleave(GROUP)[: len(largest)]
    if not bool(((weight - values).abs().amax(1) <= allowed).all()):
        raise StepError(
            f"load_in_4bit: bitsandbytes stores other weights than those of {name} on this machine; leave it out, and "
            "use `dtype: bfloat16`"
        )


def _verify_layer(layer: Any, plain: nn.Linear, name: str) -> None:
    """Raise StepError unless a quantised layer computes what a plain one does, also after a pass without gradients."""
    generator = torch.Generator().manual_seed(0)
    rows_RK, grad_RN = (
        torch.randn(ROWS, size, generator=generator).to(plain.weight)
        for size in (plain.in_features, plain.out_features)
    )
    with evaluation_mode(layer):
        with torch.no_grad():
            before_RN = layer(rows_RK)
        results = [_multiply(one, rows_RK, grad_RN) for one in (layer, plain)]
    (out_RN, grad_RK), (wanted_RN, wanted_RK) = results
    if not (is_close(before_RN, wanted_RN) and is_close(out_RN, wanted_RN) and is_close(grad_RK, wanted_RK)):
        raise StepError(
            f"load_in_4bit: bitsandbytes computes other products for {name} on this machine than a plain layer with "
            "the same values; leave it out, and use `dtype: bfloat16`"
        )


def _multiply(layer: nn.Module, rows_RK: Tensor, grad_RN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (R, N) of a layer, and the gradient (R, K) of its inputs."""
    rows_RK = rows_RK.clone().requires_grad_()
    out_RN = layer(rows_RK)
    return out_RN.detach(), torch.autograd.grad(out_RN, rows_RK, grad_RN)[0]


@torch.no_grad()
def _verify_model(model: Any) -> None:
    """Raise StepError unless the model's first layers compute what they do with plain layers of the same values.

    A model that reads the weights of its layers itself, instead of calling them, would not.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    probe = pack([[(7 + 31 * i) % vocabulary for i in range(13)]], [-1]).to(model.device)
    with evaluation_mode(model), reduced(model):
        try:
            hidden_MC = padded_hidden(model, probe)
            with _plain_layers(model):
                agrees = is_close(hidden_MC, padded_hidden(model, probe))
        except UNFIT:
            agrees = False
    if not agrees:
        raise StepError(
            f"load_in_4bit: {model.config.model_type} does not compute with quantised layers what it does with plain "
            "ones; leave it out, and use `dtype: bfloat16`"
        )


@contextmanager
def _plain_layers(model: Any) -> Iterator[None]:
    """Replace the quantised layers of a model by plain ones with their values, and put them back afterwards."""
    layers = [(name, module) for name, module in model.named_modules() if hasattr(module, "quant_storage")]
    for name, layer in layers:
        model.set_submodule(name, plain_layer(layer))
    try:
        yield
    finally:
        for name, layer in layers:
            model.set_submodule(name, layer)

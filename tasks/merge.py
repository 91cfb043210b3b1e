"""kind: merge — one model out of several, tensor by tensor, in memory bounded by the largest tensor."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from learning.merge.document import Slice, Target, list_targets, refuse_unused_tensors
from learning.merge.sources import make_slices, refuse_misfits, write_other_files
from learning.merge.tensor import Method, check_shapes, merge_tensor, sum_totals
from learning.models.weights import Weights, WeightsWriter
from schemas.adapter_base import RECORD, find_plain_base
from schemas.stages.merge import Merge
from tasks.context import Context, Result

HALF = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}
"""Names of precisions in a config."""


def run(stage: Merge, context: Context) -> Result:
    """Write the merged model to output `model` and return the metrics `models`, `tensors` and `parameters`.

    Raises StepError, with the tensor and both shapes, for models that do not fit together, and for parameters that
    the method does not have.
    """
    method = Method(stage.merge_method)
    with tempfile.TemporaryDirectory(dir=context.folder, prefix="folded-") as folded:
        slices, template = open_models(stage, context, Path(folded))
        refuse_misfits(slices, template)
        targets = list(list_targets(slices, template))
        refuse_unknown(stage, method, slices, targets)
        dtype, out_dtype = choose_precisions(stage, template)
        shapes = {t.name: (check_shapes(t), _choose_precision(t, out_dtype)) for t in targets}
        folder = context.output("model")
        totals = sum_totals(targets, method, stage.parameters, dtype)
        options = {"dtype": dtype, "out_dtype": out_dtype, "seed": context.seed, "totals": totals}
        with WeightsWriter(folder / "model.safetensors", shapes) as writer:

            def make(target: Target) -> Tensor:
                return merge_tensor(target, method, stage.parameters, **options)

            for done, (target, tensor) in enumerate(
                make_in_parallel(targets, make, max(1, context.num_threads)), start=1
            ):
                writer.write(target.name, tensor)
                context.progress(done, len(targets))
        write_other_files(slices, template, HALF[out_dtype], folder)
        parameters = sum(torch.Size(shape).numel() for shape, _ in shapes.values())
        models = {source.weights.folder for piece in slices for source in piece.sources}
        return Result({"models": len(models), "tensors": len(shapes), "parameters": parameters})


def open_models(stage: Merge, context: Context, folded: Path) -> tuple[list[Slice], Weights]:
    """Open every model once, adapters merged into their bases; the template is the base model, else the first model."""
    opened: dict[Path, Weights] = {}

    def weights_at(port: str) -> Weights:
        folder = context.input(port)
        if folder not in opened:
            opened[folder] = Weights(fold_model(folder, folded / str(len(opened))))
        return opened[folder]

    slices = make_slices(stage, weights_at)
    return slices, weights_at("base_model") if stage.base_model else slices[0].sources[0].weights


def fold_model(folder: Path, into: Path) -> Path:
    """Return a folder with full weights: the model itself; an adapter merged into its base; a GGUF file converted."""
    if (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        return folder
    # Plain weights need no transformers, whose import takes as much memory as the largest tensors of a small model.
    from learning.models.policy import find_gguf, load_policy, read_dtype, save_policy

    if find_gguf(folder):
        save_policy(load_policy(folder), into)
        return into
    if not (folder / "adapter_config.json").is_file():
        return folder
    if (folder / RECORD).is_file() or find_gguf(find_plain_base(folder)):
        save_policy(load_policy(folder, dtype=read_dtype(folder)), into)
        return into
    entries = Weights(find_plain_base(folder)).entries.values()
    dtype = next((HALF[entry.dtype] for entry in entries if entry.dtype in HALF), "float32")
    save_policy(load_policy(folder, dtype=dtype), into)
    return into


def refuse_unknown(stage: Merge, method: Method, slices: list[Slice], targets: list[Target]) -> None:
    """Refuse parameters that the method does not have, and tensors of the models that the result would not use."""
    sources = [source for piece in slices for source in piece.sources]
    levels = [stage.parameters, *(piece.parameters for piece in slices), *(source.parameters for source in sources)]
    method.refuse_unknown(levels)
    if stage.models:
        for source in sources:
            refuse_unused_tensors({target.name for target in targets}, source)


def choose_precisions(stage: Merge, template: Weights) -> tuple[torch.dtype, torch.dtype]:
    """Return the precision of the arithmetic's operands and of the result."""
    own = next((entry.dtype for entry in template.entries.values() if entry.dtype in HALF), torch.float32)
    dtype = getattr(torch, stage.dtype) if stage.dtype else own
    return dtype, getattr(torch, stage.out_dtype) if stage.out_dtype else dtype


def _choose_precision(target: Target, out_dtype: torch.dtype) -> torch.dtype:
    """Return the precision of a tensor in the result: integers keep theirs."""
    entry = target.slice.sources[0].weights.entries.get(target.source_names[0])
    return out_dtype if entry is None or entry.dtype in HALF else entry.dtype


def make_in_parallel(
    targets: list[Target], make: Callable[[Target], Tensor], workers: int
) -> Iterator[tuple[Target, Tensor]]:
    """Yield every target with its tensor, in order; each worker merges one tensor at a time on one core.

    This is faster than torch's own threads, which synchronise after every small operation.
    """
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[tuple[Target, Future[Tensor]]] = deque()
        for target in targets:
            waiting.append((target, pool.submit(make, target)))
            if len(waiting) > workers:
                first, made = waiting.popleft()
                yield first, made.result()
        for first, made in waiting:
            yield first, made.result()

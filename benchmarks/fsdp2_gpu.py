"""One optimiser step of supervised fine-tuning at the shape of a real model, sharded by FSDP2, with its memory.

    python benchmarks/fsdp2_gpu.py [--shape 1b|tiny] [--ranks 0] [--rows 8] [--tokens 1024] [--steps 5]
                                   [--strategy fsdp2|ddp] [--no-bf16] [--no-checkpointing] [--device cuda|cpu]

One process per GPU (`--ranks 0`: all GPUs), with the code of the tasks: `Trained.backward` over the packed
cross-entropy, AdamW on float32 weights, computation in bfloat16, blocks recomputed in the backward pass. One JSON line
gives the median seconds of a step after the first, tokens per second, the peak of each rank's allocator, the bytes
allocated between steps, and their expected value: 4 bytes each for weight, gradient and two moments per parameter,
divided by the ranks. `--device cpu --shape tiny --ranks 2` tests the script with gloo; it reports no peak then.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
}


def rank_main(options: argparse.Namespace) -> None:
    """One rank: its model, the steps, and one JSON line of what it saw."""
    import torch
    from torch import distributed
    from transformers import AutoModelForCausalLM, LlamaConfig

    from learning.data.examples import Example
    from learning.models.crossentropy import compute_packed_loss
    from learning.models.forwards import apply_compute_options
    from learning.models.optimize import clip_gradients, make_optimizer
    from learning.models.sharded_model import Trained
    from learning.parallel.group import Group
    from schemas.training import Training

    device = f"cuda:{options.rank}" if options.device == "cuda" else "cpu"
    if options.device == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
    where = {"RANK": options.rank, "LOCAL_RANK": options.rank, "WORLD_SIZE": options.ranks}
    os.environ |= {name: str(value) for name, value in (where | {"LOCAL_WORLD_SIZE": options.ranks}).items()}
    distributed.init_process_group(backend, f"file://{options.meeting}", rank=options.rank, world_size=options.ranks)
    torch.manual_seed(0)
    shape = SHAPES[options.shape]
    config = LlamaConfig(**shape, max_position_embeddings=max(options.tokens, 64), attn_implementation="sdpa")
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    training = Training(learning_rate=1e-5, bf16=options.bf16, gradient_checkpointing=options.checkpointing)
    apply_compute_options(model, training)
    parameters = sum(p.numel() for p in model.parameters())
    group = Group(options.rank, options.ranks, options.strategy, device)
    trained = Trained(model, group)
    optimizer = make_optimizer(model, training)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(1, shape["vocab_size"], (options.rows, options.tokens), generator=draw).tolist()
    rows = [Example(row, options.tokens // 2) for row in ids]
    learned = sum(row.num_learned for row in rows)
    seconds, losses = [], []
    for _ in range(options.steps + 1):
        if options.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)

        def mean(part: list[Example]) -> tuple[torch.Tensor, float]:
            loss = compute_packed_loss(model, part) / learned
            return loss, float(loss.detach())

        losses.append(group.add_up([sum(trained.backward([[row] for row in rows], mean))])[0])
        clip_gradients(model, 1.0)
        optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    state = [t for s in optimizer.state.values() for t in s.values()]
    kept = [*model.parameters(), *(p.grad for p in model.parameters()), *state]
    held = sum(local(t).numel() * local(t).element_size() for t in kept if t is not None)
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
    memory_by_rank = group.gather({"held": held, "peak": peak})
    if group.main:
        tell(options, parameters, memory_by_rank, seconds[1:], losses)
    distributed.destroy_process_group()


def local(tensor: Any) -> Any:
    """What this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def tell(
    options: argparse.Namespace,
    parameters: int,
    memory_by_rank: list[dict[str, Any]],
    seconds: list[float],
    losses: list[float],
) -> None:
    """The JSON line."""
    median = statistics.median(seconds)
    shares = options.ranks if options.strategy == "fsdp2" else 1
    report = {
        "benchmark": "fsdp2_step",
        "shape": options.shape,
        "parameters": parameters,
        "ranks": options.ranks,
        "strategy": options.strategy,
        "device": options.device,
        "bf16": options.bf16,
        "gradient_checkpointing": options.checkpointing,
        "rows": options.rows,
        "tokens": options.tokens,
        "median_seconds": round(median, 4),
        "tokens_per_second": round(options.rows * options.tokens / median, 1),
        "held_bytes_per_rank": [one["held"] for one in memory_by_rank],
        "expected_held_bytes_per_rank": 16 * parameters // shares,
        "peak_bytes_per_rank": [one["peak"] for one in memory_by_rank],
        "loss_first": losses[0],
        "loss_last": losses[-1],
    }
    print(json.dumps(report))


def main() -> None:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--strategy", choices=("fsdp2", "ddp"), default="fsdp2")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        rank_main(options)
        return
    if options.device == "cuda":
        import torch

        options.ranks = options.ranks or torch.cuda.device_count()
    if not options.ranks:
        raise SystemExit("no GPU here; --device cpu --shape tiny --ranks 2 tries the script")
    with tempfile.TemporaryDirectory() as folder:
        again = [*sys.argv[1:], "--ranks", str(options.ranks), "--meeting", f"{folder}/meeting"]
        near = {"PYTHONPATH": str(HOUSE), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        started = [
            subprocess.Popen([sys.executable, __file__, *again, "--rank", str(rank)], env={**os.environ, **near})
            for rank in range(options.ranks)
        ]
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()

"""Forward and backward pass over long completions of one prompt, compared with transformers' own SDPA forward pass.

    python benchmarks/long_sequences.py [--quick] [--prompts 64 4096] [--completions 512 2048 8192] [--threads 1]
                                        [--device cuda [--forward forest|varlen] [--dtype bfloat16]]

Eight completions of each length follow each prompt. Our side packs them behind one copy of the prompt; transformers'
side has eight rows of prompt and completion, without padding because all are equally long, which is its best case.
Both compute the summed log-probability of the completions and its gradient, with the same weights and threads, each in
its own process. One JSON line gives for every shape the wall seconds, the CPU seconds (which other load on the machine
affects less), and the increase of resident memory during the pass in bytes (VmHWM - VmRSS before it), with the ratios
ours / theirs, and the shares of tokens and of attention scores that a shared prompt leaves to compute: the time cannot
fall below what lies between them. Both sides must have the same loss and the same norm of the gradient.

With `--device cuda`, times are of the second pass (the first compiles kernels), bytes those of torch's allocator. Our
side takes the forward that posttrain chooses, or the one that `--forward` names.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPLETIONS = 8
SHAPE = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 16384,
}
ALLOWED = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest difference of the losses and of the norms of the gradients, relative to theirs."""


def make_model(layers: int) -> Any:
    """A Qwen3-shaped model with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    config = Qwen3Config(**SHAPE, num_hidden_layers=layers, attn_implementation="sdpa")
    return AutoModelForCausalLM.from_config(config).eval()


def token_ids(prompt: int, completion: int) -> tuple[list[int], list[list[int]]]:
    """A prompt and its completions."""
    import torch

    generator = torch.Generator().manual_seed(prompt + completion)
    return (
        torch.randint(3, SHAPE["vocab_size"], (prompt,), generator=generator).tolist(),
        torch.randint(3, SHAPE["vocab_size"], (COMPLETIONS, completion), generator=generator).tolist(),
    )


def our_loss(model: Any, prompt: list[int], completions: list[list[int]], body: Any = None) -> Any:
    """Summed -log p of the completions, from a forest with one copy of the prompt."""
    import torch

    from learning.models.packed import pack, packed_logprobs

    packed = pack([prompt, *completions], [-1] + [0] * len(completions)).to(model.device)
    needed_M = torch.arange(len(packed.input_ids_M)) >= len(prompt)
    return -packed_logprobs(model, packed, needed_M=needed_M, body=body)[0].sum()


def their_loss(model: Any, prompt: list[int], completions: list[list[int]]) -> Any:
    """The same from one row per completion, with logits of the completions only."""
    import torch
    import torch.nn.functional as F

    ids_BL = torch.tensor([prompt + completion for completion in completions], device=model.device)
    keep = len(completions[0]) + 1
    out = model(input_ids=ids_BL, attention_mask=torch.ones_like(ids_BL), use_cache=False, logits_to_keep=keep)
    logits_BLV = out.logits[:, :-1].float()
    return F.cross_entropy(logits_BLV.flatten(0, 1), ids_BL[:, 1 - keep :].flatten(), reduction="sum")


SIDES = {"ours": our_loss, "transformers": their_loss}


def resident(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def measure(side: str, prompt: int, completion: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds and bytes of one forward and backward pass in this process."""
    import torch

    torch.set_num_threads(options.threads)
    on_gpu, loss_of = options.device == "cuda", SIDES[side]
    if side == "ours" and options.forward:
        loss_of = partial(our_loss, body=options.forward)
    model = make_model(options.layers).to(options.device, getattr(torch, options.dtype))
    given = token_ids(prompt, completion)
    # Imports, the check of the forward, gradients; on a GPU the kernels of these lengths.
    loss_of(model, *(given if on_gpu else token_ids(8, 8))).backward()
    model.zero_grad(set_to_none=False)
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    wall, cpu = time.perf_counter(), time.process_time()
    loss = loss_of(model, *given)
    loss.backward()
    if on_gpu:
        torch.cuda.synchronize()
    taken = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).float().norm()
    taken["bytes"] = (torch.cuda.max_memory_allocated() if on_gpu else resident("VmHWM")) - before
    return {**taken, "loss": float(loss.detach()), "norm": float(norm)}


def spawn(options: argparse.Namespace, *words: object) -> dict[str, float]:
    """A measurement in a process of its own."""
    names = ("layers", "threads", "device", "dtype", *(["forward"] if options.forward else []))
    settings = [word for name in names for word in (f"--{name}", getattr(options, name))]
    command = [sys.executable, __file__, *map(str, settings), "--one", *map(str, words)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def count_work(prompt: int, completion: int) -> dict[str, float]:
    """Tokens and causal scores that a shared prompt leaves, as shares: no time can be below both.

    The first is the ratio of the work of linear layers, the second that of attention.
    """
    path = prompt + completion
    tokens = (prompt + COMPLETIONS * completion) / (COMPLETIONS * path)
    scores = 1 - (COMPLETIONS - 1) * prompt**2 / (COMPLETIONS * path**2)
    return {"tokens": round(tokens, 3), "scores": round(scores, 3)}


def compare(prompt: int, completion: int, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides of one shape, and their ratios."""
    ours, theirs = (spawn(options, side, prompt, completion) for side in SIDES)
    for name in ("loss", "norm"):
        if abs(ours[name] - theirs[name]) > ALLOWED[options.dtype] * abs(theirs[name]):
            raise SystemExit(f"{name}: {ours[name]} and {theirs[name]} for {prompt} + {completion} tokens")
    names = ("seconds", "cpu_seconds", "bytes")
    sides = {"ours": ours, "transformers": theirs}
    sides = {side: {name: round(measurements[name], 2) for name in names} for side, measurements in sides.items()}
    ratio = {name: round(ours[name] / theirs[name], 3) for name in names}
    return {**sides, "ratio": ratio, "bound": count_work(prompt, completion)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="prompts of 16 and 256, completions of 64 and 256 tokens")
    parser.add_argument("--prompts", type=int, nargs="+")
    parser.add_argument("--completions", type=int, nargs="+")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=list(ALLOWED), default="float32")
    parser.add_argument("--forward", choices=["forest", "varlen"], help="of our side; without it, the chosen one")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, *numbers = options.one
        print(json.dumps(measure(side, *map(int, numbers), options)))
        return
    prompts = options.prompts or ([16, 256] if options.quick else [64, 4096])
    completions = options.completions or ([64, 256] if options.quick else [512, 2048, 8192])
    shapes = {
        f"{prompt}+{COMPLETIONS}x{completion}": compare(prompt, completion, options)
        for prompt in prompts
        for completion in completions
    }
    names = ("layers", "threads", "device", "dtype", "forward")
    settings = {name: getattr(options, name) for name in names}
    print(json.dumps({"benchmark": "long_sequences", **settings, "shapes": shapes}))


if __name__ == "__main__":
    main()

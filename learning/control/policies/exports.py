"""Control policies as C, for controllers without Python: one file, without further libraries than math.h."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from learning.control.policies.policy import ControlPolicy, load_control_policy
from schemas.errors import StepError

ACTIVATIONS = {"relu": "x > 0 ? x : 0", "tanh": "tanhf(x)", "elu": "x > 0 ? x : expm1f(x)"}
FILE = "policy.c"


def export_as_c(context: Any) -> dict[str, float]:
    """Write the input `policy` as `policy.c`: `void act(const float *observation, float *action)`.

    It reads the numbers that the actor sees, those without the privileged ones. Raise StepError for an actor that is
    not deterministic, as those of td3, td3_bc and ddpg are.
    """
    policy = load_control_policy(context.input("policy"))
    if policy.actor_form != "make_deterministic_actor":
        raise StepError(
            f"policy: its actor was made by {policy.actor_form}; exported are those of td3, td3_bc and ddpg"
        )
    layers = [module for module in policy.actor.modules() if isinstance(module, nn.Linear)]
    text = write_c(policy, layers)
    (context.output("result") / FILE).write_text(text)
    return {"bytes": len(text), "parameters": sum(p.numel() for layer in layers for p in layer.parameters())}


def write_c(policy: ControlPolicy, layers: Sequence[nn.Linear]) -> str:
    """Return the program of a deterministic actor with these layers."""
    widest = max(max(layer.in_features, layer.out_features) for layer in layers)
    parts = ["#include <math.h>", f"#define SEEN {layers[0].in_features}", f"#define ACTIONS {layers[-1].out_features}"]
    for n, layer in enumerate(layers):
        parts += [_write_array(f"weight_{n}", layer.weight), _write_array(f"bias_{n}", layer.bias)]
    parts += [_write_numbers("low", policy.spaces.low), _write_numbers("high", policy.spaces.high)]
    parts.append(f"static float activate(float x) {{ return {ACTIVATIONS[policy.settings.activation]}; }}")
    parts.append(
        "static void apply(const float *w, const float *b, int in, int out, const float *x, float *y) {\n"
        "  for (int i = 0; i < out; i++) {\n"
        "    float sum = b[i];\n"
        "    for (int j = 0; j < in; j++) sum += w[i * in + j] * x[j];\n"
        "    y[i] = sum;\n  }\n}"
    )
    body = [f"  float a[{widest}], b[{widest}];", "  for (int i = 0; i < SEEN; i++) a[i] = observation[i];"]
    for n, layer in enumerate(layers):
        body.append(f"  apply(weight_{n}, bias_{n}, {layer.in_features}, {layer.out_features}, a, b);")
        change = "b[i]" if n + 1 == len(layers) else "activate(b[i])"
        body.append(f"  for (int i = 0; i < {layer.out_features}; i++) a[i] = {change};")
    body.append("  for (int i = 0; i < ACTIONS; i++) action[i] = low[i] + (high[i] - low[i]) * (tanhf(a[i]) + 1) / 2;")
    return "\n".join([*parts, "void act(const float *observation, float *action) {", *body, "}", ""])


def _write_array(name: str, values: Any) -> str:
    """Return the numbers of a tensor as an array of C, row by row."""
    return _write_numbers(name, values.detach().numpy().reshape(-1).tolist())


def _write_numbers(name: str, values: Sequence[float]) -> str:
    """Return numbers as an array of C, with the digits that give the same float again."""
    written = ", ".join(f"{np.float32(value):.9e}f" for value in values)
    return f"static const float {name}[] = {{{written}}};"

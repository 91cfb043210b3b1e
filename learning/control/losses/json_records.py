"""Classes of records that are JSON: an encoder of trees and a layer behind it, trained end to end.

Shapes: N records, C classes.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn

from learning.control.networks.json_encoder import LeafSum, TreeEncoder
from learning.control.networks.json_trees import Node, read_tree
from learning.data.rows import Row, read_rows
from learning.models.policy import set_determinism
from schemas.errors import StepError

ENCODERS: dict[str, type[TreeEncoder] | type[LeafSum]] = {"tree": TreeEncoder, "leaf_sum": LeafSum}
Count = Annotated[int, Field(ge=1)]


def fit_records(
    context: Any,
    *,
    encoder: Literal["tree", "leaf_sum"] = "tree",
    size: Count = 16,
    passes: Count = 40,
    batch_size: Count = 16,
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 3e-3,
) -> dict[str, float]:
    """Fit a classifier to the input `records` and write it; return its accuracy on them and on `held_out`.

    A record is the text of a problem, in JSON, and its class the answer. Raise StepError for a record without an
    answer or that is no JSON, and if there is one class alone.
    """
    set_determinism(context.seed, 1)
    given, unseen = (read_records(read_rows(context.input(name), "prompts")) for name in ("records", "held_out"))
    classes = sorted({answer for _, answer in given})
    if len(classes) < 2:
        raise StepError(f"fit_records: all {len(given)} records are of one class")
    trees, model = [tree for tree, _ in given], nn.Sequential(body := ENCODERS[encoder](size), nn.ReLU())
    model.append(nn.Linear(body.outputs, len(classes)))
    class_N = torch.tensor([classes.index(answer) for _, answer in given])
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(passes):
        for place in torch.randperm(len(trees)).split(batch_size):
            loss = nn.functional.cross_entropy(model([trees[n] for n in place]), class_N[place])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    accuracy = [measure(model, classes, part) for part in (given, unseen)]
    folder = context.output("result")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    described = {"encoder": encoder, "size": size, "classes": classes}
    (folder / "classifier.json").write_text(json.dumps(described, indent=1) + "\n")
    return {"accuracy": accuracy[1], "accuracy_in_training": accuracy[0], "records": len(given)}


def read_records(rows: Sequence[Row]) -> list[tuple[Node | None, str]]:
    """Return trees and classes. Raise StepError for a record without a class or that is no JSON."""
    for row in rows:
        if row["answer"] is None:
            raise StepError(f"record {row['id']} has no answer, which is its class")
    return [(read_tree(row["prompt"][-1]["content"].encode()), str(row["answer"])) for row in rows]


def measure(model: nn.Module, classes: Sequence[str], records: Sequence[tuple[Node | None, str]]) -> float:
    """Return the share of records whose likeliest class is theirs."""
    with torch.no_grad():
        score_NC: Tensor = model([tree for tree, _ in records])
    found = [classes[int(n)] for n in score_NC.argmax(1)]
    return sum(one == answer for one, (_, answer) in zip(found, records, strict=True)) / len(records)

"""json2vec: JSON of any shape as one vector; keys have no order, items have one, and places matter.

Not shown: the UCI data sets, poker hands, the ablations.
"""

import json
import math
from pathlib import Path
from zlib import crc32

import gymnasium
import numpy as np
import pytest
import torch

from learning.control.losses.json_records import fit_records
from learning.control.networks.build import Networks
from learning.control.networks.json_encoder import PLACES, FromBytes, LeafSum, TreeEncoder
from learning.control.networks.json_trees import ITEM, ROOT, read_tree, write_bytes
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.spaces import Spaces, read_spaces
from learning.control.worlds.json_worlds import as_json, shop_street
from learning.data.rows import write_rows
from learning.lookup import bind
from learning.toy_tasks.receipts import receipts
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/json2vec.yaml").stages
RECORD = {"b": [3.0, {"kind": "tea"}], "a": {"x": -2, "deep": {"x": 0.5}}, "gone": None, "on": True}


def make_encoder(stage="tree"):
    """The encoder of the actor of the recipe's stage, with weights of its own."""
    torch.manual_seed(0)
    use, settings = STAGES[stage].loss, STAGES[stage].networks
    actor = bind(use, "loss")(Networks(Spaces(256, 2), settings)).actor
    (found,) = (module for module in actor.modules() if isinstance(module, TreeEncoder | LeafSum))
    return found


def encode(encoder, *values):
    """Vectors of JSON values, in the order of keys that they have."""
    with torch.no_grad():
        return encoder([read_tree(json.dumps(value).encode()) for value in values])


class ByHand:
    """The same network, one node after the other, in float64."""

    def __init__(self, encoder):
        self.size = encoder.size
        self.weights = {name: tensor.detach().double().numpy() for name, tensor in encoder.named_parameters()}

    def lstm(self, name, x, h, c):
        w = self.weights
        gates = w[f"{name}.weight_ih"] @ x + w[f"{name}.bias_ih"] + w[f"{name}.weight_hh"] @ h + w[f"{name}.bias_hh"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    def encode(self, value, way=(ROOT,)):
        """Memory and state of a value; None for null and for what holds nothing else."""
        w, zero = self.weights, np.zeros(self.size)
        place = crc32(json.dumps(way[-2:]).encode()) % PLACES
        if value is None:
            return None
        if isinstance(value, str):
            h, c = w["text_start"][place], zero
            for byte in value.encode():
                h, c = self.lstm("text", w["letters.weight"][byte], h, c)
            return zero, h
        if isinstance(value, dict):
            parts = [self.encode(one, (*way, f"key {key}")) for key, one in value.items()]
            parts = [part for part in parts if part is not None]
            i, u, o = np.split(w["gates.weight"] @ sum(h for _, h in parts) + w["gates.bias"], 3)
            kept = sum(sigmoid(w["forget.weight"] @ h + w["forget.bias"]) * c for c, h in parts)
            c = sigmoid(i) * np.tanh(u) + kept
            return c, w["key_weight"][place] @ (sigmoid(o) * np.tanh(c)) + w["key_bias"][place]
        if isinstance(value, list):
            h, c = w["items_start"][place], zero
            for one in value:
                h, c = self.lstm("items", np.concatenate(self.encode(one, (*way, ITEM))), h, c)
            return c, h
        return zero, w["number_weight"][place] * math.asinh(value) + w["number_bias"][place]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_tree_is_encoded_as_by_hand_whatever_else_is_in_the_batch():
    encoder = make_encoder()
    others = [{"a": 1}, [[[1, 2], [3]], "word"], {"b": {"c": {"d": [0]}}}]
    by_hand = ByHand(encoder)
    for value, vector in zip([RECORD, *others], encode(encoder, RECORD, *others), strict=True):
        assert vector.numpy() == pytest.approx(np.concatenate(by_hand.encode(value)), abs=1e-5)


def test_keys_have_no_order_and_items_have_one():
    encoder = make_encoder()
    turned = {key: RECORD[key] for key in reversed(RECORD)}
    one, same, other = (encode(encoder, value) for value in (RECORD, turned, RECORD | {"b": RECORD["b"][::-1]}))
    assert list(turned) != list(RECORD)
    assert torch.equal(one, same)
    assert (one - other).abs().max() > 1e-3
    first, second = encode(encoder, [1, 2, 3], [1, 3, 2])
    assert (first - second).abs().max() > 1e-3


def test_a_value_under_another_key_is_another_record():
    encoder = make_encoder()
    pairs = [({"x": 1, "y": 2}, {"x": 2, "y": 1}), ({"a": "tea"}, {"b": "tea"})]
    pairs += [({"p": {"a": {"q": 1}}, "b": {"q": 2}}, {"p": {"a": {"q": 2}}, "b": {"q": 1}})]
    for first, second in pairs:
        one, two = encode(encoder, first, second)
        assert (one - two).abs().max() > 1e-3


def test_records_of_any_depth_give_vectors_of_one_size():
    encoder = make_encoder()
    values = [RECORD, {"a": 1}, {}, [], None, 3, "x", "", [[[[]]], [{"z": None}]], {"a": {"b": {"c": {"d": [1]}}}}]
    vectors = encode(encoder, *values)
    assert vectors.shape == (10, 2 * STAGES["tree"].networks.hidden_sizes[0]) == (10, encoder.outputs)
    empty = [n for n, vector in enumerate(vectors) if not vector.any()]
    assert empty == [2, 3, 4, 7, 8]
    assert torch.equal(encode(encoder, {"a": 1, "b": None})[0], encode(encoder, {"a": 1})[0])


def test_gradients_reach_the_leaves_and_only_the_places_that_occur():
    encoder = make_encoder()
    encoder([read_tree(json.dumps(RECORD).encode())]).square().sum().backward()
    gradients = {name: p.grad for name, p in encoder.named_parameters()}
    assert all(gradient.abs().sum() > 0 for gradient in gradients.values())
    numbers = [("key b", ITEM), ("key a", "key x"), ("key deep", "key x"), (ROOT, "key on")]
    places = {crc32(json.dumps(way).encode()) % PLACES for way in numbers}
    assert {n for n, row in enumerate(gradients["number_weight"]) if row.any()} == places
    letters = {n for n, row in enumerate(gradients["letters.weight"]) if row.any()}
    assert letters == set(b"tea")


def test_the_sum_of_leaves_does_not_see_what_holds_them():
    """Which line has which count: the tree tells them apart, the sum cannot."""
    one = {"lines": [{"item": "tea", "count": 3}, {"item": "nuts", "count": 8}]}
    two = {"lines": [{"item": "tea", "count": 8}, {"item": "nuts", "count": 3}]}
    leaves, tree = make_encoder("leaf_sum"), make_encoder()
    first, second = encode(leaves, one, two)
    assert torch.allclose(first, second, atol=1e-6)
    assert first.shape == (leaves.size,)
    first, second = encode(tree, one, two)
    assert (first - second).abs().max() > 1e-3
    alone = [encode(leaves, {"lines": [line]})[0] for line in one["lines"]]
    assert torch.allclose(encode(leaves, one)[0], alone[0] + alone[1], atol=1e-6)
    for encoder in (leaves, tree):
        assert torch.allclose(encode(encoder, one, one), encode(encoder, one).expand(2, -1), atol=1e-6)


def test_what_is_no_json_is_refused():
    for text in (b"", b"{", b"{'a': 1}", b'{"a": NaN}', b"[1e999]", b"1" + b"0" * 400, b"[" * 40 + b"]" * 40, b"\xff"):
        with pytest.raises(StepError, match="no JSON that can be read"):
            read_tree(text)
    assert read_tree(b"[" * 32 + b"1" + b"]" * 32).level == 32


def test_worlds_become_json_and_come_back():
    spaces = gymnasium.spaces

    class Kinds(gymnasium.Env):
        observation_space = spaces.Dict(
            {
                "all": spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(2))),
                "some": spaces.Sequence(spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32)})),
                "word": spaces.Text(9),
            }
        )
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            some = tuple({"x": np.array([x], np.float32)} for x in (0.3, -0.1))
            return {"all": (3, np.array([1, 0])), "some": some, "word": "tea"}, {}

    world = as_json(world=Kinds, size=90)
    shown, _ = world.reset(seed=0)
    assert shown.shape == world.observation_space.shape == (90,)
    assert shown.dtype == np.uint8
    expected = {"all": [3, [1, 0]], "some": [{"x": 0.3}, {"x": -0.1}], "word": "tea"}
    assert json.loads(bytes(shown).rstrip(b"\0")) == expected
    with pytest.raises(StepError, match="60 bytes of JSON, and `size` is 59"):
        as_json(world=Kinds, size=59).reset(seed=0)
    encoder = make_encoder()
    rows = torch.from_numpy(np.stack([write_bytes(value, 90) for value in (expected, {"a": 1}, expected)])).float()
    vectors = FromBytes(encoder)(rows.reshape(1, 3, 90))
    assert torch.allclose(vectors[0, ::2], encode(encoder, expected).expand(2, -1), atol=1e-6)
    assert vectors.shape == (1, 3, encoder.outputs)


def test_one_of_two_shops_sells_tea_and_the_text_says_which():
    world = bind(STAGES["report"].env, "env")()
    assert read_spaces(world) == Spaces(256, 2)
    sides, texts = [], set()
    for seed in range(200):
        said = json.loads(bytes(world.reset(seed=seed)[0]).rstrip(b"\0"))
        shops = said.get("street", said)["shops"]
        texts.add(json.dumps([sorted(said), [sorted(shop) for shop in shops]]))
        where = {shop["sells"]: shop.get("stands", shop)["at"] for shop in shops}
        assert where["tea"] * where["nuts"] < 0
        earned, way = 0.0, int(where["tea"] > 0) if seed % 2 else int(where["nuts"] > 0)
        for _ in range(abs(where["tea" if seed % 2 else "nuts"])):
            *_, earned, ended, cut, _ = world.step(way)
        assert (earned, ended, cut) == (float(seed % 2), True, False)
        sides.append(where["tea"] > 0)
    assert len(texts) == 8
    assert 70 < sum(sides) < 130
    numbers = shop_street(shows="features")
    shown, _ = numbers.reset(seed=3)
    where = dict(numbers.shops)
    assert shown.tolist() == [0, *(x for sold, place in numbers.shops for x in (sold == "tea", sold == "nuts", place))]
    assert set(where) == {"tea", "nuts"}
    for step in range(12):
        *_, ended, cut, _ = numbers.step(step % 2) if min(map(abs, where.values())) > 1 else (0, 0, False, True, {})
    assert cut
    assert not ended


def test_the_answer_of_a_receipt_is_in_its_lines():
    rows = receipts(size=60, seed=1, split="train")
    shapes = set()
    for row in rows:
        body = json.loads(row["prompt"][0]["content"])
        shapes.add((tuple(sorted(body)), *(tuple(sorted(line)) for line in body.get("order", body)["lines"])))
        counts = {line["item"]: line.get("amount", line)["count"] for line in body.get("order", body)["lines"]}
        assert row["answer"] == ("yes" if counts["tea"] > counts["nuts"] else "no")
    assert len(shapes) > 8
    assert not {row["id"] for row in rows} & {row["id"] for row in receipts(size=60, seed=2, split="test")}


def fit(folder, rows, held_out, stage="tree_of_records", **options):
    """Run the recipe's classifier on some rows."""
    inputs = {"records": folder / "records", "held_out": folder / "held_out"}
    for name, part in zip(inputs, (rows, held_out), strict=True):
        inputs[name].mkdir(parents=True)
        write_rows(inputs[name], "prompts", part)
    context = Context(inputs, folder / "step", folder / "checkpoints", seed=1)
    context.folder.mkdir()
    use = STAGES[stage].function
    return bind(use.model_copy(update=options), "function", inputs)(context), context.output("result")


def test_records_are_classified_by_their_structure(tmp_path):
    """Each receipt stands beside that with its counts exchanged: the sum of leaves gives both the same class."""
    rows = receipts(size=12, seed=3, split="train")
    for row in list(rows):
        body = json.loads(row["prompt"][0]["content"])
        lines = body.get("order", body)["lines"]
        names = [line["item"] for line in lines]
        for line, name in zip(lines, reversed(names), strict=True):
            line["item"] = name
        turned = {"id": row["id"][::-1], "prompt": [{"role": "user", "content": json.dumps(body)}]}
        rows.append(row | turned | {"answer": {"yes": "no", "no": "yes"}[row["answer"]]})
    found, folder = fit(tmp_path / "tree", rows, rows[:5], batch_size=6, learning_rate=2e-2)
    assert (found["accuracy_in_training"], found["accuracy"]) == (1.0, 1.0)
    assert json.loads((folder / "classifier.json").read_text())["classes"] == ["no", "yes"]
    found, _ = fit(tmp_path / "sum", rows, rows[:5], "leaf_sum_of_records", passes=2)
    assert found["accuracy_in_training"] < 0.8
    with pytest.raises(StepError, match="of one class"):
        fit(tmp_path / "one", [row for row in rows if row["answer"] == "no"], rows)


@pytest.mark.parametrize("name", ["tree", "leaf_sum"])
def test_the_policy_is_trained_and_read_again(name, tmp_path):
    stage = STAGES[name].model_copy(update={"environment_steps": 64, "rollout_steps": 8, "batch_size": 32})
    context = Context({}, tmp_path / "step", tmp_path / "checkpoints", seed=1)
    context.folder.mkdir()
    torch.manual_seed(0)
    result = control.run(stage, context)
    assert result.metrics["updates"] == 4 * 2
    policy, again = load_control_policy(context.output("model")), load_control_policy(context.output("model"))
    kind = {"tree": TreeEncoder, "leaf_sum": LeafSum}[name]
    (encoder,) = (module for module in policy.actor.modules() if isinstance(module, kind))
    world = bind(stage.env, "env")()
    shown = np.stack([world.reset(seed=n)[0] for n in range(8)]).astype(np.float32)
    batch = torch.from_numpy(shown)
    assert policy.act(shown, explore=False).tolist() == again.act(shown, explore=False).tolist()
    assert FromBytes(encoder)(batch).unique(dim=0).shape[0] > 1
    networks = Networks(policy.spaces, NetworkSettings(privileged=3))
    with pytest.raises(StepError, match="privileged"):
        networks.make_json_actor()


def test_the_arms_differ_in_how_they_read_alone():
    tree, leaf_sum, features = (STAGES[name].model_dump() for name in ("tree", "leaf_sum", "features"))
    assert tree["loss"].pop("encoder") == "tree"
    assert leaf_sum["loss"].pop("encoder") == "leaf_sum"
    assert tree == leaf_sum
    for arm in (tree, features):
        arm.pop("loss")
    assert tree.pop("env") == {"use": "as_json", "world": "shop_street"}
    assert features.pop("env")["shows"] == "features"
    assert tree == features
    assert dict(STAGES["report"].models) == {"leaf_sum": "leaf_sum", "tree": "tree"}
    assert STAGES["report"].env == STAGES["tree"].env
    fitted = [STAGES[f"{name}_of_records"].model_dump() for name in ("tree", "leaf_sum")]
    assert [one["function"].pop("encoder") for one in fitted] == ["tree", "leaf_sum"]
    assert fitted[0] == fitted[1]
    assert fitted[0]["inputs"] == {"records": "records", "held_out": "held_out"}
    made = [STAGES[name].problems[0] for name in ("records", "held_out")]
    assert [(use.use, use.options["split"], use.options["size"]) for use in made] == [
        ("receipts", "train", 200),
        ("receipts", "test", 200),
    ]
    assert fit_records.__name__ == STAGES["tree_of_records"].function.use.rpartition(":")[2]

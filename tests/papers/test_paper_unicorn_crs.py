"""UNICORN: one argmax over items and attributes on a weighted graph, with few candidates, by dueling double Q-learning.

Not shown: real recommendation data, embeddings of TransE.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import make_batch
from learning.control.buffers.replay import td_error
from learning.control.losses.conversation_values import ask_while_many, epsilon_among_open
from learning.control.networks.build import Networks
from learning.control.networks.conversation_graph import (
    ChooseCandidate,
    ConversationValues,
    Graph,
    GraphConvolution,
    find_sizes,
)
from learning.control.policies.playing import play
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces, read_spaces
from learning.control.worlds.conversations import Catalogue, Conversation, conversation, read_catalogue, squash
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/unicorn-crs.yaml").stages
ITEMS, ATTRIBUTES = 30, 8


def write_log(folder, seed=1):
    """The recipe's log."""
    folder.mkdir()
    context = Context({}, folder, folder / "checkpoints", seed=seed)
    bind(STAGES["written"].function)(context)
    return context.output("result")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("unicorn") / "written")


def make_world(stage, log):
    return bind(STAGES[stage].env, "env", {"env.log": log})()


SMALL = Catalogue(
    # Of four items the first three have the first attribute, two the second one, and all the third one.
    np.array([[1.0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1]]),
    {"train": [(0, 0)], "test": [(0, 0)]},
    np.array([[1.0, 0]]),
    np.array([[1.0, 0], [0, 1], [0, 2], [-1, 0]]),
    np.array([[0.5, 1], [1, 0], [0, 0]]),
)


def begin(confirmed=0, **options):
    """A conversation of user 0, who wants item 0, with an attribute that they named first."""
    settings = {"part": "train", "limit": 8, "list_size": 1, "pays": "turns"} | options
    world = Conversation(SMALL, **settings)
    for seed in range(100):
        world.reset(seed=seed)
        if world.confirmed == [confirmed]:
            return world
    raise AssertionError


def read(world):
    return Graph.read(torch.from_numpy(world.observe())[None], world.items, world.attributes)


def test_an_attribute_that_half_the_weight_has_is_asked_before_one_that_nine_tenths_have():
    """−p ln p: .5 gives .3466, .9 gives .0948; what all or none have tells nothing."""
    has = torch.tensor([[[1.0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 1, 0]]])
    graph = Graph(has, torch.tensor([[0.4, 0.1, 0.5]]), torch.zeros(1, 4))
    assert graph.score_attributes()[0].tolist() == pytest.approx([0.34657, 0.09482, 0, 0], abs=1e-5)
    assert graph.keep_best(3, 1)[0].tolist() == [True] * 3 + [True, False, False, False]
    assert graph.keep_best(1, 2)[0].tolist() == [False, False, True, True, True, False, False]
    assert graph.find_open()[0].tolist() == [True] * 6 + [False]


def test_weights_follow_what_was_confirmed_and_refused():
    """σ(e_u·e_v + Σ e_p·e_v − Σ σ(e_p·e_v)), the last over refused attributes that the item has."""
    world = begin()
    expected = squash(np.array([1 + 0.5, 0 + 1, 0 + 2, 0])) * [1, 1, 1, 0]
    assert world.weigh_items().tolist() == pytest.approx(expected.tolist())
    world.refused.append(1)
    second = squash(np.array([1.5 - squash(1.0), 1.0, 2 - squash(0.0), 0])) * [1, 1, 1, 0]
    assert world.weigh_items().tolist() == pytest.approx(second.tolist())
    graph = read(world)
    assert graph.has_BVP[0].tolist() == [[1, 0, 1], [1, 0, 1], [1, 0, 1], [0, 0, 0]]
    assert graph.weight_BV[0].tolist() == pytest.approx(second.tolist(), abs=1e-6)
    assert graph.confirmed_BP[0].tolist() == [1, 0, 0]
    assert graph.find_open()[0].tolist() == [True, True, True, False, False, False, True]


def test_turns_earn_what_the_paper_gives_and_what_is_wrong_changes_nothing():
    world = begin()
    shown, reward, over, *_ = world.step(4 + 1)
    assert (reward, over, world.possible.tolist()) == (0.01, False, [1, 0, 1, 0])
    assert world.step(4 + 1)[1] == world.step(1)[1] == -0.1
    assert world.possible.tolist() == [1, 0, 1, 0]
    assert world.step(2)[1:3] == (-0.1, False)
    assert world.possible.tolist() == [1, 0, 0, 0]
    assert world.step(0)[1:3] == (1.0, True)
    world = begin(limit=2)
    world.target = 1
    assert world.step(4 + 1)[1:3] == (-0.1, False)
    assert world.refused == [1]
    assert world.step(2)[1:3] == (-0.3, True)
    assert shown.dtype == np.float32
    counted = begin(pays="success", limit=2)
    assert [counted.step(2)[1], counted.step(0)[1:3]] == [0.0, (1.0, True)]
    several = begin(list_size=2)
    assert several.list_items(1) == [1, 2]
    assert several.list_items(2) == [2, 0]


class Fixed(torch.nn.Module):
    """Values that are written down."""

    def __init__(self, values, candidates):
        super().__init__()
        self.values, self.candidates = values, candidates

    def forward(self, observation):
        rows = observation[..., 0].long()
        return self.values[rows], self.candidates[rows]


def test_one_argmax_ranges_over_items_and_attributes_together():
    choose = ChooseCandidate()
    values = torch.tensor([[1.0, 5, 2, 4], [1.0, 3, 2, 4], [9.0, 3, 2, 4]])
    candidates = torch.tensor([[True] * 4, [True] * 4, [False, True, True, True]])
    action, value = choose(values, candidates)
    assert action.tolist() == [1, 3, 3]
    assert value[:, 0].tolist() == [5, 4, 4]


@pytest.fixture(scope="module")
def spaces(log):
    return read_spaces(make_world("unified", log))


def make_algorithm(spaces, stage="unified", seed=0, **options):
    use = STAGES[stage].loss
    changed = type(use).model_validate({**use.model_dump(exclude_unset=True), **options})
    torch.manual_seed(seed)
    return bind(changed, "loss")(Networks(spaces, STAGES[stage].networks))


def show(log, count=5):
    """Observations after some random turns."""
    world, rng, shown = make_world("unified", log), np.random.default_rng(0), []
    for seed in range(count):
        seen, _ = world.reset(seed=seed)
        for _ in range(2):
            seen = world.step(int(rng.integers(ITEMS, ITEMS + ATTRIBUTES)))[0]
        shown.append(seen)
    return torch.from_numpy(np.stack(shown))


def find_network(algorithm) -> ConversationValues:
    return algorithm.actor[0].module


def test_the_target_takes_the_value_of_what_the_trained_network_chooses(log, spaces, monkeypatch):
    """Online values (1, 2) and target values (5, 3): the target is 3. γ is .999."""
    algorithm = make_algorithm(spaces)
    shown = show(log, 2)
    columns = {"observation": shown, "next_observation": shown.flip(0), "action": torch.tensor([3, 31])}
    columns |= {"reward": torch.tensor([[0.0], [1.0]]), "terminated": torch.tensor([[False], [True]])}
    batch = make_batch({**columns, "truncated": torch.zeros(2, 1, dtype=torch.bool)})
    online = find_network(algorithm).embedding

    def compute(self, observation):
        is_target = not torch.equal(self.embedding.detach(), online.detach())
        values = torch.zeros(len(observation), spaces.actions)
        values[:, 7], values[:, 35] = (5.0, 3.0) if is_target else (1.0, 2.0)
        values[:, 8] = 100.0  # no candidate
        candidates = torch.zeros_like(values, dtype=torch.bool)
        candidates[:, [7, 35]] = True
        return values + 0 * self.embedding.sum(), candidates

    monkeypatch.setattr(ConversationValues, "forward", compute)
    with torch.no_grad():
        for parameter in algorithm.loss.target_value_network_params.values(True, True):
            parameter.add_(0.5)
        error = algorithm.loss(batch)["loss"].item()
        assert error == pytest.approx(((0.999 * 3) ** 2 + 1) / 2, rel=1e-4)
        single = make_algorithm(spaces, double=False)
        for parameter in single.loss.target_value_network_params.values(True, True):
            parameter.add_(0.5)
        online = find_network(single).embedding
        assert single.loss(batch)["loss"].item() == pytest.approx(((0.999 * 5) ** 2 + 1) / 2, rel=1e-4)


def test_graph_convolutions_pass_on_what_edges_weigh():
    torch.manual_seed(0)
    layer, nodes, edges = GraphConvolution(3), torch.randn(1, 3, 3), torch.zeros(1, 3, 3)
    edges[0, 0, 1] = edges[0, 1, 0] = 0.25
    with torch.no_grad():
        got = layer(nodes, edges)[0]
        alone = torch.relu(layer.own(nodes[0, 2]))
        joined = torch.relu(layer.own(nodes[0, 0]) + layer.neighbours(nodes[0, 1]) * 0.25 / 0.25)
    assert torch.allclose(got[2], alone)
    assert torch.allclose(got[0], joined, atol=1e-6)
    edges[0, 1, 2] = edges[0, 2, 1] = 1.0
    with torch.no_grad():
        passed = layer.neighbours(nodes[0, 1]) * 0.25 / (0.25 * 1.25) ** 0.5
        assert torch.allclose(layer(nodes, edges)[0, 0], torch.relu(layer.own(nodes[0, 0]) + passed), atol=1e-6)


def test_edges_are_weights_of_possible_items_and_their_attributes(log, spaces):
    network = find_network(make_algorithm(spaces))
    graph = network.read(show(log))
    edges = network.connect(graph)
    assert torch.equal(edges, edges.transpose(1, 2))
    assert torch.equal(edges[:, 0, 1 : 1 + ITEMS], graph.weight_BV)
    assert torch.equal(edges[:, 1 : 1 + ITEMS, 1 + ITEMS :], graph.has_BVP)
    assert edges[:, 0, 1 + ITEMS :].abs().sum() == 0
    gone = graph.weight_BV == 0
    assert gone.any()
    assert graph.has_BVP[gone].abs().sum() == 0


def test_values_are_the_states_plus_advantages_less_the_candidates_mean(log, spaces):
    network = find_network(make_algorithm(spaces))
    shown = show(log)
    with torch.no_grad():
        values, candidates = network(shown)
        state = network.encode(network.read(shown))
        assert (values * candidates).sum(1).tolist() == pytest.approx(
            (network.value(state)[:, 0] * candidates.sum(1)).tolist(), rel=1e-3
        )
        pair = torch.cat([state[0], network.embedding[1 + 33]])
        other = torch.cat([state[0], network.embedding[1 + 2]])
        difference = network.advantage(pair) - network.advantage(other)
    assert (values[0, 33] - values[0, 2]).item() == pytest.approx(difference.item(), abs=1e-5)


def test_the_state_is_what_was_confirmed_and_depends_on_weights(log, spaces):
    """The transformer reads confirmed attributes alone; their nodes know the items, and those the user's weights."""
    network = find_network(make_algorithm(spaces))
    graph = network.read(show(log, 1))
    with torch.no_grad():
        state = network.encode(graph)
        lighter = Graph(graph.has_BVP, graph.weight_BV**3, graph.confirmed_BP)
        assert not torch.allclose(network.encode(lighter), state, atol=1e-5)
        fewer = torch.zeros_like(graph.confirmed_BP)
        assert torch.isfinite(network.encode(Graph(graph.has_BVP, graph.weight_BV, fewer))).all()
        seen = []
        network.history.register_forward_pre_hook(
            lambda _, given, named: seen.append(named["src_key_padding_mask"]), with_kwargs=True
        )
        network.encode(graph)
    assert torch.equal(seen[0], graph.confirmed_BP == 0)


def test_arms_differ_in_their_candidates_alone(log, spaces):
    shown = show(log)
    counts = {}
    for name in ("separate", "unpruned", "unified"):
        network = find_network(make_algorithm(spaces, name))
        candidates = network(shown)[1]
        counts[name] = [candidates[:, :ITEMS].sum(1).tolist(), candidates[:, ITEMS:].sum(1).tolist()]
        assert not (candidates & ~network.read(shown).find_open()).any()
    assert counts["separate"] == [[1] * 5, [1] * 5]
    still = network.read(shown).find_open()
    assert counts["unpruned"] == [still[:, :ITEMS].sum(1).tolist(), still[:, ITEMS:].sum(1).tolist()]
    assert counts["unified"][0] == np.minimum(counts["unpruned"][0], 10).tolist()
    dumped = {name: STAGES[name].model_dump() for name in counts}
    losses = {name: stage.pop("loss") for name, stage in dumped.items()}
    assert dumped["separate"] == dumped["unpruned"] == dumped["unified"]
    assert losses["unified"] == {"use": "conversation_dqn", "gamma": 0.999, "tau": losses["unified"]["tau"]} | {
        "items": 10,
        "attributes": 10,
    }


def test_replay_is_prioritised_by_errors_and_corrected_more_and_more(spaces):
    stage = STAGES["unified"]
    assert stage.priority.use == "td_error"
    mass = bind(stage.priority, "priority").ask(0, {"error_B": np.array([0.0, 1.0]), "batch": None})
    assert mass.tolist() == pytest.approx(td_error(np.array([0.0, 1.0]), alpha=0.6).tolist())
    assert stage.priority_correction.model_dump()["linear"]["to"] == 1.0
    assert make_algorithm(spaces).error_power == 2


def test_exploration_draws_from_what_is_open_alone(log, spaces):
    shown, rng = show(log, 1).numpy().repeat(400, 0), np.random.default_rng(0)
    network = find_network(make_algorithm(spaces))
    may = set(network.read(torch.from_numpy(shown[:1])).find_open()[0].nonzero()[:, 0].tolist())
    never = next(n for n in range(spaces.actions) if n not in may)
    drawn = epsilon_among_open(np.full(400, never), shown, spaces, rng, epsilon=1.0)
    assert set(drawn.tolist()) == may
    some = epsilon_among_open(np.full(400, never), shown, spaces, rng, epsilon=0.25)
    assert 50 < (some != never).sum() < 150
    assert STAGES["unified"].exploration.use == "epsilon_among_open"


def test_the_rule_asks_the_best_attribute_while_many_items_are_possible():
    world = begin()
    graph = read(world)
    spaces = read_spaces(world)
    assert graph.find_open()[0].tolist() == [True, True, True, False, False, True, True]
    # Three items are possible; the second attribute splits them, the third does not.
    seen = world.observe()[None]
    assert ask_while_many(seen, spaces, few=2).tolist() == [4 + 1]
    assert ask_while_many(seen, spaces, few=3).tolist() == [int(world.weigh_items().argmax())]


def test_training_and_report_have_other_items_of_the_users(log):
    data = json.loads((log / "log.json").read_text())
    pairs = {part: {tuple(pair) for pair in data[part]} for part in ("train", "test")}
    assert not pairs["train"] & pairs["test"]
    assert [len(pairs[part]) for part in ("train", "test")] == [120, 40]
    catalogue = read_catalogue(log, 8)
    for stage, part in (("unified", "train"), ("report", "test")):
        world = make_world(stage, log)
        drawn = {(world.reset(seed=seed), (world.user, world.target))[1] for seed in range(60)}
        assert drawn <= set(catalogue.pairs[part])
        assert (world.limit, len(drawn) > 20) == (8, True)
    assert make_world("report", log).pays == "success"


def test_embeddings_are_the_best_of_their_size(log):
    """All numbers of the tables at full rank; who took what in the part `test` is in none of them."""
    full = read_catalogue(log, 30)
    took = full.of_users_UE @ full.of_items_VE.T
    assert np.allclose(full.of_attributes_PE @ full.of_items_VE.T, full.has_VP.T, atol=1e-9)
    assert {(u, v) for u, v in zip(*np.nonzero(took > 0.5), strict=True)} == set(full.pairs["train"])
    assert read_catalogue(log, 8).of_items_VE.shape == (ITEMS, 8)


def test_sizes_are_found_and_other_worlds_are_refused(spaces):
    assert find_sizes(spaces) == (ITEMS, ATTRIBUTES)
    assert find_sizes(read_spaces(Conversation(SMALL, "train", 8, 1, "turns"))) == (4, 3)
    assert find_sizes(Spaces(3, 2)) == (1, 1)
    for other in (Spaces(4, 2), Spaces(spaces.observations + 1, spaces.actions), Spaces(3, 2, agents=2)):
        with pytest.raises(StepError, match="a conversation has"):
            find_sizes(other)
    with pytest.raises(StepError, match="heads do not divide"):
        Networks(spaces, NetworkSettings(hidden_sizes=[10], heads=3)).make_conversation_values()


@pytest.mark.parametrize(
    ("items", "log", "named"),
    [
        ({"a": ["x"]}, None, "needs items.json"),
        ({"a": ["x"]}, {"train": [["u", "a"]]}, "test"),
        ({"a": ["x"]}, {"train": [["u", "b"]], "test": [["u", "a"]]}, "'b'"),
        ({"a": ["x"], "b": []}, {"train": [["u", "a"]], "test": [["u", "a"]]}, "b has none"),
        ({"a": ["x", "y"]}, {"train": [["u", "a"]], "test": [["u", "a"]]}, "1, 2"),
        ({"a": ["x"]}, {"train": [], "test": [["u", "a"]]}, "pairs in both"),
        ({"a": ["x"]}, {"train": ["u"], "test": [["u", "a"]]}, "pair|needs"),
    ],
)
def test_other_logs_are_refused(items, log, named, tmp_path):
    (tmp_path / "items.json").write_text(json.dumps(items))
    if log is not None:
        (tmp_path / "log.json").write_text(json.dumps(log))
    with pytest.raises(StepError, match=named):
        conversation(log=str(tmp_path))


def test_a_policy_is_trained_and_read_again_with_its_candidates(log, tmp_path):
    context = Context({"env.log": log}, tmp_path / "run", tmp_path / "run/checkpoints", seed=1)
    context.folder.mkdir()
    stage = STAGES["separate"].model_copy(update={"environment_steps": 80})
    control.run(stage, context)
    policy = load_control_policy(context.output("model"))
    assert policy.actor[0].module.kept.tolist() == [1.0, 1.0]
    returns = play(bind(STAGES["report"].env, "env", {"env.log": log}), policy.actor, range(5), 1, "test")
    assert set(returns.tolist()) <= {0.0, 1.0}
    assert isinstance(policy, ControlPolicy)

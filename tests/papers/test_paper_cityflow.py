"""CityFlow: no vehicle is lost, red stops, workers change nothing, agents set their own signals, files are the city.

Not shown: more than twenty times the speed of SUMO, the renderer, real cities.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.policies.policy import act
from learning.control.stepping.spaces import read_spaces
from learning.control.stepping.teams import Team
from learning.control.worlds.cities import SIZE, in_turns, lay_grid, longest_queue
from learning.control.worlds.traffic import Traffic, read_network
from learning.lookup import bind
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import python
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/cityflow.yaml")
STAGES = RECIPE.stages


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    """The recipe's folder of roads and flows."""
    folder = tmp_path_factory.mktemp("city")
    context = Context({}, folder, folder / "c", seed=1)
    metrics = python.run(STAGES["laid"], context).metrics
    assert metrics == {"intersections": 4, "roads": 12, "vehicles": 255}
    return context.output("result")


def make(city, name="report"):
    use = STAGES[name].env
    return bind(type(use).model_validate({"use": use.use, **use.options, "roads": str(city)}), "env")


def play(world, choose, seed=5):
    """Every step of an episode in which `choose` gives the signals."""
    seen, _ = world.reset(seed=seed)
    while world.agents:
        before = [len(queue) for queue in world.traffic.queues]
        actions = choose(seen)
        seen, rewards, *_ = world.step(dict(zip(world.possible_agents, actions, strict=True)))
        yield before, rewards


def test_vehicles_that_entered_are_inside_or_left_at_every_step(city):
    """By a count of its own: of every vehicle once, on the roads."""
    traffic = Traffic(read_network(city), saturation=1, lost=2)
    traffic.plan(np.random.default_rng(0), 3)
    for step in range(200):
        traffic.set_signals([step // 7 % 2] * 4)
        traffic.step()
        inside = sum(len(queue) for queue in (*traffic.queues, *traffic.moving))
        assert traffic.entered == inside + traffic.left
    assert 0 < traffic.left < traffic.entered
    assert traffic.entered == sum(len(routes) for step, routes in traffic.departures.items() if step < 200)


def test_red_lets_nobody_go_and_green_at_most_the_saturation_flow(city):
    network = read_network(city)
    for saturation in (1, 3):
        traffic, most = Traffic(network, saturation=saturation, lost=2), 0
        traffic.plan(np.random.default_rng(0), 0)
        for step in range(200):
            traffic.set_signals([step // 20 % 2] * 4)
            since, before = list(traffic.since), [len(queue) for queue in traffic.queues]
            traffic.step()
            for n, ends in enumerate(traffic.ends):
                for road in ends:
                    gone = traffic.discharged[road]
                    green = network.roads[road].way == traffic.signals[n] and since[n] >= 2
                    assert gone == (min(before[road], saturation) if green else 0)
                    most = max(most, gone)
        assert most == saturation


def test_a_signal_that_changes_lets_nobody_go_for_two_steps(city):
    traffic = Traffic(read_network(city), saturation=1, lost=2)
    (road,) = [n for n in traffic.ends[0] if traffic.network.roads[n].way == 1]
    traffic.queues[road].extend([(road, road + 1)] * 9)
    traffic.set_signals([1, 0, 0, 0])
    gone = []
    for _ in range(5):
        traffic.step()
        gone.append(traffic.discharged[road])
    assert gone == [0, 0, 1, 1, 1]


def trace(city, name, folder, seed=1):
    context = Context({"inputs.city": city}, folder / name, folder / f"{name}-c", seed=seed)
    context.folder.mkdir(parents=True)
    python.run(STAGES[name], context)
    return (context.output("result") / "trace.json").read_bytes()


def test_two_workers_leave_the_same_trace_as_one(city, tmp_path):
    assert [STAGES[name].function.options["workers"] for name in ("serial", "threads")] == [1, 2]
    serial, threads = trace(city, "serial", tmp_path), trace(city, "threads", tmp_path)
    assert serial == threads
    assert serial != trace(city, "serial", tmp_path / "other", seed=2)
    steps = json.loads(serial)
    assert len(steps) == 200
    assert steps[-1]["left"] > 100


def test_vehicles_merge_in_the_same_order_for_any_number_of_workers(tmp_path):
    """From the second and the third intersection onto one road, from which they go on to different ones."""
    names = (
        ("a", "y", "ew"),
        ("b", "z", "ew"),
        ("c", "w", "ew"),
        ("d", None, "ew"),
        ("e", None, "ew"),
        ("f", "x", "ns"),
    )
    roads = [{"id": name, "to": to, "way": way, "travel": 1} for name, to, way in names]
    (tmp_path / "roads.json").write_text(json.dumps({"intersections": ["x", "y", "z", "w"], "roads": roads}))
    (tmp_path / "flow.json").write_text("[]")
    merged = []
    for workers in (1, 2):
        traffic = Traffic(read_network(tmp_path), saturation=1, lost=0, workers=workers)
        traffic.set_signals([1, 1, 1, 1])
        traffic.queues[0].append((0, 2, 3))
        traffic.queues[1].append((1, 2, 4))
        traffic.step()
        merged.append([route for _, route in traffic.moving[2]])
    assert merged == [[(2, 3), (2, 4)]] * 2


def test_workers_share_the_intersections(city):
    """With two workers each lets go at every second intersection, all of them once."""
    traffic, asked = Traffic(read_network(city), saturation=1, lost=0, workers=2), []
    let_go = traffic.let_go
    traffic.let_go = lambda intersections: asked.append(list(intersections)) or let_go(intersections)
    traffic.step()
    assert asked == [[0, 2], [1, 3]]


def test_an_agent_changes_its_own_signal_and_no_other(city):
    for agent in range(4):
        worlds = [make(city)() for _ in range(2)]
        for n, world in enumerate(worlds):
            world.reset(seed=0)
            world.step({name: int(n and i == agent) for i, name in enumerate(world.possible_agents)})
        signals = [world.traffic.signals for world in worlds]
        assert [i for i in range(4) if signals[0][i] != signals[1][i]] == [agent]


def test_a_city_of_ones_own_comes_from_its_files_alone(tmp_path):
    """Two intersections in a row: a vehicle enters at 0, drives 2 steps, waits for green, and again."""
    roads = [("a", "x", 2), ("b", "y", 2), ("c", None, 2)]
    laid = {"intersections": ["x", "y"], "roads": [{"id": i, "to": t, "way": "ew", "travel": n} for i, t, n in roads]}
    (tmp_path / "roads.json").write_text(json.dumps(laid))
    flow = [{"route": ["a", "b", "c"], "start": 0, "every": 4, "count": 2}]
    (tmp_path / "flow.json").write_text(json.dumps(flow))
    traffic = Traffic(read_network(tmp_path), saturation=1, lost=0)
    traffic.plan(np.random.default_rng(0), 0)
    traffic.set_signals([1, 1])
    left = []
    for _ in range(16):
        traffic.step()
        left.append(traffic.left)
    # Steps 0, 3 and 6 let it onto the roads; it leaves in step 8, the second one four steps later.
    assert [step for step in range(1, 16) if left[step] > left[step - 1]] == [8, 12]
    assert traffic.driven == 16
    for broken in ({"route": ["a", "b"]}, {"route": ["a", "nowhere"]}, {"every": 0}):
        (tmp_path / "flow.json").write_text(json.dumps([flow[0] | broken]))
        with pytest.raises(StepError, match="city: "):
            read_network(tmp_path)


def test_rewards_are_the_vehicles_that_wait_and_returns_the_time_of_travel(city):
    world, timed = make(city)(), make(city, "travel_time")()
    paid = [rewards for _, rewards in play(world, lambda _: [0, 1, 0, 1])]
    spent = [rewards for _, rewards in play(timed, lambda _: [0, 1, 0, 1])]
    assert len(paid) == 40
    total = sum(next(iter(rewards.values())) for rewards in spent)
    assert total == pytest.approx(-timed.traffic.driven / 255)
    assert world.traffic.driven == timed.traffic.driven
    world.reset(seed=5)
    world.traffic.queues[world.traffic.ends[1][0]].extend([(0,)] * 4)
    world.traffic.set_signals([0, 1, 0, 0])
    _, rewards, *_ = world.step({"i00": 0, "i01": 1, "i10": 0, "i11": 0})
    assert rewards["i01"] == pytest.approx(-4 / 10)


def test_rules_read_the_signal_its_age_and_the_queues(city):
    spaces = read_spaces(Team(make(city)()))
    seen = np.zeros((1, 4, SIZE), np.float32)
    seen[0, :, 8] = 1.0
    seen[0, 1, 8:] = [0.0, 1.0, 1.2]
    seen[0, 2, 2:4] = [0.1, 0.2]
    seen[0, 3, 10] = 0.9
    assert in_turns(seen.reshape(1, -1), spaces).tolist() == [[0, 0, 0, 0]]
    assert longest_queue(seen.reshape(1, -1), spaces).tolist() == [[0, 1, 1, 0]]
    seen[0, 3, 10] = 1.0
    assert in_turns(seen.reshape(1, -1), spaces).tolist() == [[0, 0, 0, 1]]


def test_all_intersections_have_one_network(city):
    """Intersections that see the same choose the same, whatever the weights; with networks of their own they do not."""
    spaces = read_spaces(Team(make(city)()))
    alike = np.tile(np.random.default_rng(0).random((64, 1, SIZE)), (1, 4, 1)).reshape(64, -1).astype(np.float32)
    settings = STAGES["shared"].networks
    counts = []
    for shared in (True, False):
        torch.manual_seed(0)
        actor = Networks(spaces, settings.model_copy(update={"share_agents": shared})).make_team_values()
        chosen = act(actor, alike, explore=False)
        assert bool((chosen == chosen[:, :1]).all()) is shared
        counts.append(sum(p.numel() for p in actor.parameters()))
    assert settings.share_agents
    assert counts[1] == 4 * counts[0]


def test_the_report_has_rules_beside_the_learned_signals():
    for name in ("report", "travel_time"):
        assert [use.use for use in STAGES[name].policies.values()] == ["random", "in_turns", "longest_queue"]
        assert dict(STAGES[name].models) == {"shared": "shared"}
        assert STAGES[name].episodes == 20
    assert STAGES["shared"].env.options == STAGES["report"].env.options
    assert STAGES["travel_time"].env.options == STAGES["report"].env.options | {"pays": "travel_time"}
    assert STAGES["shared"].environment_steps == 4000
    assert lay_grid.__kwdefaults__["rows"] == STAGES["laid"].function.options["rows"] == 2

"""Environment `isolated`: episodes in processes, whose steps are really ended, at the cost of the episode alone."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from learning.data.chat import encode_prompt
from learning.environments.episodes import Episodes
from learning.environments.isolated import Environment
from learning.environments.protocol import HasStateName, Outcome
from learning.generation.engines.torch import Engine
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from schemas.use import EnvUse
from tests.waiting import wait_for


class World:
    """Counts turns; some words make it misbehave. Its state can be saved."""

    def __init__(self, *, label: str = "turn"):
        self.label = label

    def begin(self, row, seed):
        if row["id"] == "never":
            while True:
                pass
        return Played(self.label, seed)


class Played:
    def __init__(self, label, seed):
        self.label, self.seed, self.turns = label, seed, 0

    @property
    def state_name(self):
        return f"after {self.turns}"

    def step(self, action):
        self.turns += 1
        if action == "hang":
            while True:
                pass
        if action == "die":
            os._exit(3)
        if action == "raise":
            raise KeyError("no such thing")
        if action == "process":
            return Outcome(str(os.getpid()))
        return Outcome(f"{self.label} {self.turns} {self.seed}", action == "end", 0.5, 2.0, action != "bad")

    def save(self):
        return {"turns": self.turns}

    def restore(self, saved):
        self.turns = saved["turns"]


class Plain:
    """Counts turns, and cannot save its state."""

    def begin(self, row, seed):
        played = Played("turn", seed)

        class Counted:
            def step(self, action):
                return played.step(action)

        return Counted()


def make(seconds=30.0, **options):
    use = EnvUse.model_validate({"use": "tests.learning.environments.test_isolated:World", **options})
    return Environment(of=use, seconds=seconds)


ROW = {"id": "a", "metadata": "{}", "prompt": [{"role": "user", "content": "go"}], "answer": ""}


def process_of(play):
    return psutil.Process(int(play.step("process").observation))


@pytest.fixture(scope="module")
def world():
    return make(label="move")


def test_outcomes_states_and_options_are_those_of_the_inner_environment(world):
    plain, play = World(label="move").begin(ROW, 7), world.begin(ROW, 7)
    assert isinstance(play, HasStateName)
    for action in ("x", "bad", "end"):
        assert play.state_name == plain.state_name
        assert play.step(action) == plain.step(action)


def test_a_state_can_be_saved_and_restored_in_another_episode(world):
    first, second = world.begin(ROW, 1), world.begin(ROW, 1)
    first.step("x")
    saved = first.save()
    assert saved == {"turns": 1}
    second.restore(saved)
    assert second.step("y").observation == "move 2 1"


def test_an_episode_without_saved_states_carries_its_turns_out_again():
    world = Environment(of=EnvUse.model_validate({"use": f"{__name__}:Plain"}), seconds=30.0)
    first, second = world.begin(ROW, 1), world.begin(ROW, 1)
    first.step("x")
    second.restore(first.save())
    assert second.step("y").observation == "turn 2 1"


def test_episodes_have_processes_of_their_own_that_end_with_them(world):
    first, second = world.begin(ROW, 1), world.begin(ROW, 2)
    processes = [process_of(play) for play in (first, second)]
    assert len({process.pid for process in processes} | {os.getpid()}) == 3
    first.step("end")
    wait_for(lambda: not processes[0].is_running())
    assert second.step("x").observation == "move 2 2"
    del second
    wait_for(lambda: not processes[1].is_running())


@pytest.mark.parametrize(("action", "said"), [("hang", "no answer within 1 seconds"), ("die", "its process has ended")])
def test_a_step_that_does_not_return_costs_its_episode_alone(action, said):
    world = make(seconds=1.0)
    one, other = world.begin(ROW, 1), world.begin(ROW, 2)
    process = process_of(one)
    outcome = one.step(action)
    assert (outcome.done, outcome.ok, outcome.reward) == (True, False, 0.0)
    assert said in outcome.observation
    wait_for(lambda: not process.is_running())
    assert other.step("x").observation == "turn 1 2"
    assert world.begin(ROW, 3).step("x").observation == "turn 1 3"


def test_an_exception_is_an_error(world):
    play = world.begin(ROW, 1)
    with pytest.raises(StepError, match="env isolated: KeyError: 'no such thing'"):
        play.step("raise")


def test_an_episode_that_does_not_begin_is_an_error():
    with pytest.raises(StepError, match="for never does not begin: no answer within 1 seconds"):
        make(seconds=1.0).begin(ROW | {"id": "never"}, 1)


def test_an_environment_that_cannot_be_made_is_an_error():
    use = EnvUse.model_validate({"use": "gymnasium", "id": "FrozenLake-v1"})
    with pytest.raises(StepError, match=r"gymnasium cannot be made: StepError: .* give `actions`"):
        Environment(of=use).begin(ROW, 1)


def test_the_run_goes_on(tiny_policy):
    """Every episode's first turn hangs in one problem, and none in the other."""

    class Dictated(Environment):
        def begin(self, row, seed):
            play = super().begin(row, seed)
            step = play.step
            play.step = lambda action: step("hang" if row["id"] == "bad" else "end")
            return play

    world = Dictated(of=make().of, seconds=2.0)
    rows = [ROW | {"id": text} for text in ("bad", "good")]
    requests = [Request(encode_prompt(tiny_policy.tokenizer, row["prompt"]), 2, 4, row=row) for row in rows]
    episodes = Episodes(Engine(tiny_policy), world, tokenizer=tiny_policy.tokenizer, max_turns=3)

    def ends(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        logits_BV[:, tiny_policy.tokenizer.eos_token_id] = logits_BV.logsumexp(-1) + 3.0
        return logits_BV

    bad, good = episodes.generate(requests, Sampling(1.0, 60, processor=ends))
    episodes.close()
    assert [[turn.ok for turn in g.turns] for g in bad] == [[False]] * 2
    assert [[(turn.ok, turn.reward) for turn in g.turns] for g in good] == [[(True, 0.5)]] * 2


def test_no_process_outlives_the_one_that_plays(tmp_path):
    code = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from tests.learning.environments.test_isolated import ROW, make
play = make(seconds=100.0).begin(ROW, 1)
print(play.step("process").observation, play.connection.channel.fileno(), flush=True)
play.step("hang")
"""
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    with started:
        episode = psutil.Process(int(started.stdout.readline().split()[0]))
        server = episode.parent()
        assert server.parent().pid == started.pid
        started.send_signal(signal.SIGKILL)
    began = time.monotonic()
    wait_for(lambda: not server.is_running() and not episode.is_running())
    assert time.monotonic() - began < 60

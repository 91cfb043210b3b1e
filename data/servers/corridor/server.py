"""An environment behind the protocol of OpenEnv: walk along a corridor to a goal within some steps.

It stands in for servers that are written with the package `openenv-core`, whose many dependencies it does without: a
session per WebSocket at `/ws`, the messages `reset`, `step`, `state` and `close`, each answered with JSON.
"""

import argparse
import json
import random

from websockets.sync.server import serve


class Corridor:
    def reset(self, seed=None, fields=9, most_steps=8, farthest=None):
        self.fields, self.most_steps, self.steps = fields, most_steps, 0
        draw = random.Random(seed)
        while True:
            self.place, self.goal = draw.sample(range(1, fields + 1), 2)
            if abs(self.place - self.goal) <= (farthest or fields):
                break
        return self.observe(0.0)

    def step(self, direction):
        self.steps += 1
        self.place = min(self.fields, max(1, self.place + {"left": -1, "right": 1}[direction]))
        return self.observe(1.0 if self.place == self.goal else 0.0)

    def observe(self, reward):
        text = f"you are at {self.place}, the goal is at {self.goal}"
        way = f"at {self.place}, goal {abs(self.goal - self.place)} to the {'right' if self.goal > self.place else 'left'}"
        done = self.place == self.goal or self.steps >= self.most_steps
        return {"observation": {"text": text, "way": way, "steps": self.steps}, "reward": reward, "done": done}


def answer(corridor, message):
    kind, data = message["type"], message.get("data", {})
    if kind == "reset":
        return {"type": "observation", "data": corridor.reset(**data)}
    if kind == "step":
        return {"type": "observation", "data": corridor.step(data["direction"])}
    if kind == "state":
        return {"type": "state", "data": {"episode_id": None, "step_count": corridor.steps}}
    raise ValueError(f"no message {kind}")


def talk(connection):
    corridor = Corridor()
    for text in connection:
        try:
            message = json.loads(text)
            if message["type"] == "close":
                return
            reply = answer(corridor, message)
        except Exception as error:
            reply = {"type": "error", "data": {"message": f"{type(error).__name__}: {error}", "code": "EXECUTION_ERROR"}}
        connection.send(json.dumps(reply))


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
with serve(talk, "127.0.0.1", parser.parse_args().port) as server:
    server.serve_forever()

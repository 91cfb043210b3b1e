"""Environment `verifiers`: an environment of the library verifiers, with its rubric as the reward."""

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.environments.event_loop import EventLoop
from learning.environments.protocol import Outcome
from learning.environments.time_limit import StepTimeout
from learning.environments.tool_calls import parse_tool_calls
from learning.lookup import find
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.use import ForeignUse

Message = dict[str, Any]
LOADING = threading.Lock()
"""Held while the library's own handlers of signals are kept out."""


class Environment:
    """Play an environment of verifiers: single-turn, multi-turn or with tools; its rubric scores the episode.

    The problems of a stage are made by `starts`, from the environment's own data sets. Needs `pip install
    'posttrain[verifiers]'`. (Brown 2025.)
    """

    def __init__(
        self,
        *,
        load: ForeignUse,
        kwargs: JsonObject = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
        score: str | None = None,
        held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        seconds: Annotated[float, Field(gt=0)] = 30.0,
    ) -> None:
        """Set the function that returns the environment, such as `wordle:load_environment`, and its `kwargs`.

        `score` names one function of the rubric whose value is the reward; null: their weighted sum. `held_out` is the
        share of the data set that is for tests if the environment has no data set for evaluation. A step that takes
        more than `seconds`, or raises, ends the episode.
        """
        self.name, self.score, self.held_out, self.seconds = load.use, score, held_out, seconds
        self.loop = EventLoop()
        try:
            import verifiers  # an optional dependency
        except ImportError as error:
            raise StepError(f"env verifiers: {error}: pip install 'posttrain[verifiers]'") from error
        with _without_signal_handlers():
            try:
                self.inner: Any = find(load)(**kwargs)
            except Exception as error:  # a third party's environment may raise anything
                raise StepError(f"env verifiers: {self.name}: {type(error).__name__}: {error}") from error
        if not isinstance(self.inner, verifiers.MultiTurnEnv):
            kind = type(self.inner).__name__
            raise StepError(
                f"env verifiers: {self.name} returns {kind}: only MultiTurnEnv and what derives from it play"
            )
        if self.inner.message_type != "chat":
            raise StepError(f"env verifiers: {self.name} continues plain text; only environments of chats play")
        rubrics = getattr(self.inner.rubric, "rubrics", [self.inner.rubric])
        if group := [f.__name__ for rubric in rubrics for f in rubric.funcs if rubric._is_group_func(f)]:
            raise StepError(f"env verifiers: {self.name}: `{group[0]}` scores groups of samples, not one episode")
        names = [function.__name__ for rubric in rubrics for function in rubric.funcs]
        if score is not None and score not in names:
            raise StepError(f"env verifiers: {self.name}: its rubric has no `{score}`; there are {', '.join(names)}")

    def limit_turns(self, most: int) -> None:
        """Let episodes end, and be scored, after this number of turns at the latest."""
        self.inner.max_turns = min(most, self.inner.max_turns) if self.inner.max_turns > 0 else most

    def list_starts(self, size: int, split: Literal["train", "test"], seed: int) -> list[Row]:
        """Return problems of the environment's data set in an order drawn from `seed`. Raise StepError for too few."""
        entries = self._read_entries(split)
        if len(entries) < size:
            raise StepError(f"env verifiers: {self.name} has {len(entries)} problems for {split}; {size} are asked for")
        order = np.random.default_rng(seed).permutation(len(entries))[:size]
        return [self._make_row(entries[place], f"{split}-{place}") for place in order.tolist()]

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode of a problem. Raise StepError for a row that `starts` did not make."""
        entry = json.loads(row["metadata"] or "{}").get("entry")
        if not isinstance(entry, dict):
            raise StepError(f"env verifiers: row {row['id']} is no problem of it; make problems with {{use: starts}}")
        play = Play(self, entry)
        if play.shown != row["prompt"]:
            raise StepError(f"env verifiers: {self.name} begins the problem of row {row['id']} with another prompt")
        return play

    def run(self, coroutine: Any) -> Any:
        """Return the result of a coroutine of the library."""
        return self.loop.run(coroutine, self.seconds)

    def _read_entries(self, split: str) -> list[JsonObject]:
        has_own = self.inner.eval_dataset_source is not None or self.inner.eval_dataset is not None
        if split == "test" and has_own:
            return self.inner.get_eval_dataset().to_list()
        entries = self.inner.get_dataset().to_list()
        if has_own:
            return entries
        if split == "test" and not self.held_out:
            raise StepError(
                f"env verifiers: {self.name} has no data set for evaluation; set `held_out: 0.2` in every stage that "
                "plays it, so that a share of its problems is for tests only"
            )
        is_test = [crc32(json.dumps(entry["prompt"]).encode()) < self.held_out * 2**32 for entry in entries]
        return [entry for entry, test in zip(entries, is_test, strict=True) if test == (split == "test")]

    def _make_row(self, entry: JsonObject, name: str) -> Row:
        try:
            metadata = json.dumps({**entry, "entry": entry})
        except TypeError as error:
            raise StepError(f"env verifiers: {self.name}: problem {name} cannot be stored as JSON: {error}") from error
        answer, play = entry.get("answer"), Play(self, entry)
        module = self.name.partition(":")[0].rpartition(".")[2]
        row = {
            "id": f"{module}-{name}",
            "prompt": play.shown,
            "answer": str(answer) if answer not in (None, "") else None,
            "family": str(entry.get("task") or "verifiers"),
            "metadata": metadata,
        }
        return row | ({"tools": list(play.state["oai_tools"])} if play.state["oai_tools"] else {})


class Play:
    """One episode: the steps of the library's own loop, with turns of the model instead of answers of a server."""

    def __init__(self, environment: Environment, entry: JsonObject) -> None:
        self.environment, self.inner = environment, environment.inner
        try:
            self.state = environment.run(self._set_up(entry))
        except Exception as error:  # a third party's environment may raise anything
            problem = f"the beginning of an episode: {type(error).__name__}: {error}"
            raise StepError(f"env verifiers: {environment.name}: {problem}") from error
        self.messages: list[Message] = self.state.pop("posttrain_prompt")
        self.shown = [{"role": message["role"], "content": _get_text(message)} for message in self.messages]

    def step(self, action: str) -> Outcome:
        """Pass a turn to the environment; what goes wrong inside it ends the episode."""
        try:
            return self.environment.run(self._step(action))
        except StepError:
            raise
        except StepTimeout as error:
            return Outcome(f"error: {error}", done=True, ok=False)
        except Exception as error:  # a third party's environment may raise anything; the run continues
            return Outcome(f"error: {type(error).__name__}: {error}", done=True, ok=False)

    async def _set_up(self, entry: JsonObject) -> Any:
        state = await self.inner.init_state({**entry}, None, "posttrain", None)
        state = await self.inner.setup_state(state) or state
        await self.inner.is_completed(state)
        state["posttrain_prompt"] = list(await self.inner.get_prompt_messages(state))
        return state

    async def _step(self, action: str) -> Outcome:
        import verifiers  # an optional dependency

        state, response = self.state, _make_response(action, len(self.state["trajectory"]))
        try:
            await self.inner.add_model_response(state, self.messages, response)
            if not await self.inner.is_completed(state):
                before = deepcopy([*self.messages, *state["trajectory"][-1]["completion"]])
                messages = list(await self.inner.get_prompt_messages(state))
                if state.get("final_env_response") is None:
                    return self._continue(before, messages)
        except verifiers.Error as error:
            state["error"] = error
        if not state["is_completed"]:
            await self.inner.is_completed(state)
        await self.inner.render_completion(state)
        await self.inner.rubric.score_rollout(state)
        name = self.environment.score
        reward = float(state["reward"] if name is None else state["metrics"][name])
        if not math.isfinite(reward):
            raise StepError(f"env verifiers: {self.environment.name}: the rubric gives {reward}, not a finite number")
        return Outcome(done=True, reward=reward, ok=state.get("error") is None)

    def _continue(self, before: list[Message], messages: list[Message]) -> Outcome:
        """Return what the environment adds to the conversation. Raise StepError if it changes what was there."""
        added = messages[len(before) :]
        if messages[: len(before)] != before or any(message["role"] == "assistant" for message in added):
            raise StepError(f"env verifiers: {self.environment.name} changes earlier turns of the conversation")
        self.messages = messages
        return Outcome("\n".join(map(_get_text, added)))


def _make_response(action: str, turn: int) -> Any:
    """Return a turn of the model as the answer of a server with OpenAI's protocol."""
    from openai.types.chat import ChatCompletion  # takes a second

    content, calls = parse_tool_calls(action)
    tool_calls = [
        {
            "id": f"call-{turn}-{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for place, call in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": tool_calls} if calls else {})}
    finish = "tool_calls" if calls else "stop"
    return ChatCompletion.model_validate(
        {
            "id": f"turn-{turn}",
            "object": "chat.completion",
            "created": 0,
            "model": "posttrain",
            "choices": [{"index": 0, "finish_reason": finish, "message": message, "logprobs": None}],
        }
    )


def _get_text(message: Message) -> str:
    """Return the content of a message. Raise StepError for parts that are no text."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if strange := [part.get("type") for part in content if part.get("type") != "text"]:
        raise StepError(f"env verifiers: a message has content of type {strange[0]}; only text can be shown")
    return "\n".join(part["text"] for part in content)


@contextmanager
def _without_signal_handlers() -> Iterator[None]:
    """Keep an environment from replacing the process's handlers of signals, which its constructor does."""
    from verifiers.envs import environment as module  # an optional dependency

    inert = SimpleNamespace(signal=lambda *handler: None, SIGINT=None, SIGTERM=None, default_int_handler=None)
    with LOADING:
        own, module.signal = module.signal, inert
        try:
            yield
        finally:
            module.signal = own

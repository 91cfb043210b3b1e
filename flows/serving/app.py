"""HTTP routes: models, completions, feedback, health, metrics. Every error has the format of the OpenAI API."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from flows.serving import requests
from flows.serving.answers import Answer, Chat, Plain
from flows.serving.attempts import Attempt, list_attempts
from flows.serving.bodies import max_body_bytes, parse_json, read_body
from flows.serving.current import Current, Served
from flows.serving.feedback_requests import MAX_FEEDBACK_BYTES, read_feedback
from flows.serving.guard import Guard
from flows.serving.observation import CONTENT_TYPE, Observation
from flows.serving.pieces import TIMED_OUT, stream_pieces
from flows.serving.refusals import Refused, error_body, quoted
from flows.serving.requests import CompletionRequest
from flows.serving.rules import Rules
from flows.serving.worker import Piece

SENT_AT_ONCE = 64 * 1024
"""Characters of a response written to the connection before it waits for the client to read them."""
Reader = Callable[[Any, Any, int], CompletionRequest]
Pieces = AsyncGenerator[tuple[int, Piece | None]]


def make_app(current: Current, rules: Rules | None = None, log: Path | None = None) -> FastAPI:
    """Return the application, which answers with the model that is currently served; `log` receives a line a request.

    Raise PlanError if the log cannot be written.
    """
    app = FastAPI(title="posttrain serve", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    endpoint = Endpoint(current, rules or Rules())
    # Starlette's type stubs require handlers that accept any exception; each of these gets only its own type.
    app.add_exception_handler(Refused, cast(Any, _answer_refused))
    app.add_exception_handler(HTTPException, cast(Any, _answer_unrouted))
    app.add_exception_handler(Exception, _answer_broken)
    observation = Observation(current, log)
    app.add_middleware(Guard, rules=endpoint.rules, observation=observation)

    @app.get("/health")
    async def health() -> JSONResponse:
        if (failure := current.failure) is not None:
            return JSONResponse({"status": "failing", "reason": failure}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(observation.render(), media_type=CONTENT_TYPE)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [current.served.card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, object]:
        return _find_served(current, name).card()

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await endpoint.answer(request, requests.read_chat, Chat())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await endpoint.answer(request, requests.read_text_request, Plain())

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        return await endpoint.take_feedback(request)

    @app.get("/v1/canary")
    async def canary() -> Response:
        if current.canary is None:
            raise Refused("no canary runs: posttrain serve --canary", status=404)
        return JSONResponse(await asyncio.to_thread(current.canary.facts))

    return app


class Endpoint:
    """Answers requests for completions."""

    def __init__(self, current: Current, rules: Rules):
        self.current, self.rules = current, rules
        self.reading = ThreadPoolExecutor(1, "serving-reads")
        self.writing = ThreadPoolExecutor(1, "serving-writes")

    async def answer(self, request: Request, read: Reader, words: Chat | Plain) -> Response:
        """Return the response to a request. Raise Refused."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.rules.timeout
        try:
            body = await read_body(
                request, max_body_bytes(self.current.served.worker.max_length), self.rules.body_seconds
            )
            async with asyncio.timeout_at(until):
                understood = await loop.run_in_executor(self.reading, self._parse, body, read, words)
            for asked, attempt in understood[:-1]:
                try:
                    if isinstance(asked, Refused):
                        raise asked
                    return await self._try(attempt, asked, words, request, until)
                except (TimeoutError, ClientDisconnect):
                    raise
                except Exception as error:  # whatever the challenger fails with, the champion answers
                    await loop.run_in_executor(self.writing, attempt.fail, error)
            asked, attempt = understood[-1]
            return await self._try(attempt, cast(CompletionRequest, asked), words, request, until, is_last=True)
        except TimeoutError as error:
            raise Refused(f"{TIMED_OUT} {self.rules.timeout:g} s", code="timeout", status=504) from error
        except ClientDisconnect:
            return Response(status_code=499)

    async def _try(
        self,
        attempt: Attempt,
        asked: CompletionRequest,
        words: Chat | Plain,
        request: Request,
        until: float,
        is_last: bool = False,
    ) -> Response:
        """Return the response of one model; a time limit, and errors of the last model, count as its failures."""
        loop, served = asyncio.get_running_loop(), attempt.served
        answer = Answer(asked, words, served.fingerprint, served.worker.policy.tokenizer, attempt.response)
        pieces = stream_pieces(asked, served.worker, until)
        attempt.note(request.scope)
        try:
            if asked.stream:
                first = [] if is_last else [await _take_first(pieces)]
                await loop.run_in_executor(self.writing, attempt.record)
                events = _stream_events(answer, attempt, first, pieces)
                return StreamingResponse(events, media_type="text/event-stream", headers=attempt.headers())
            if not await _take_pieces(answer, pieces, request):
                return Response(status_code=499)
            content = await loop.run_in_executor(self.writing, answer.rendered)
            await loop.run_in_executor(self.writing, attempt.record)
        except Exception as error:
            if is_last or isinstance(error, TimeoutError):
                await loop.run_in_executor(self.writing, attempt.fail, error)
            raise
        headers = {"content-length": str(len(content))} | attempt.headers()
        return StreamingResponse(_split_text(content), media_type="application/json", headers=headers)

    def _parse(
        self, body: bytes, read: Reader, words: Chat | Plain
    ) -> list[tuple[CompletionRequest | Refused, Attempt]]:
        """Return the request as each model that may answer reads it. Raise Refused if the last, the champion, does."""
        value = parse_json(body, self.current.served.worker.max_length)
        _find_served(self.current, value.get("model") if isinstance(value, dict) else None)
        understood: list[tuple[CompletionRequest | Refused, Attempt]] = []
        attempts = list_attempts(self.current, value, words)
        for attempt in attempts:
            worker = attempt.served.worker
            try:
                understood.append((read(value, worker.policy.tokenizer, worker.max_length), attempt))
            except Refused as error:
                if attempt is attempts[-1]:
                    raise
                understood.append((error, attempt))
        return understood

    async def take_feedback(self, request: Request) -> JSONResponse:
        """Return what became of feedback on a response. Raise Refused."""
        if self.current.canary is None:
            raise Refused("feedback is taken while a canary runs: posttrain serve --canary", status=404)
        body = await read_body(request, MAX_FEEDBACK_BYTES, self.rules.body_seconds)
        given = read_feedback(parse_json(body, 0))
        loop = asyncio.get_running_loop()
        try:
            counts = await loop.run_in_executor(self.writing, self.current.canary.rate, given.id, given.value)
        except sqlite3.Error as error:
            raise Refused("the feedback cannot be recorded", code="not_recorded", status=503) from error
        if counts is None:
            raise Refused(f"no response of this canary has the id {given.id}", "id", "response_not_found", 404)
        return JSONResponse({"object": "feedback", "id": given.id, "score": given.value, "counted": counts})


async def _take_first(pieces: Pieces) -> tuple[int, Piece]:
    """Return the first piece, before which another model may still answer. Raise what the engine raised."""
    async for index, piece in pieces:
        if piece is not None:
            return index, piece
    raise RuntimeError("the engine gave no token")


async def _take_pieces(answer: Answer, pieces: Pieces, request: Request) -> bool:
    """Take all pieces; return False if the client has left."""
    async with contextlib.aclosing(pieces):
        async for index, piece in pieces:
            if piece is not None:
                answer.choices[index].take(piece, answer.with_logprobs)
            elif await request.is_disconnected():
                return False
    return True


def _find_served(current: Current, name: Any) -> Served:
    if not isinstance(name, str):
        raise Refused("model: must be the name of a model", "model")
    if name != current.served.name:
        message = f"the model `{quoted(name)}` does not exist; this server has `{current.served.name}`"
        raise Refused(message, "model", "model_not_found", 404)
    return current.served


async def _stream_events(
    answer: Answer, attempt: Attempt, first: list[tuple[int, Piece]], pieces: Pieces
) -> AsyncIterator[str]:
    for chunk in answer.opening():
        yield _format_event(chunk)
    for index, piece in first:
        yield _format_event(answer.chunk(index, piece))
    try:
        async with contextlib.aclosing(pieces):
            async for index, piece in pieces:
                if piece is not None:
                    yield _format_event(answer.chunk(index, piece))
    except Exception as error:  # the status is already sent, so the error becomes an event
        await asyncio.to_thread(attempt.fail, error)
        message = f"{TIMED_OUT} its limit" if isinstance(error, TimeoutError) else str(error)
        yield _format_event({"error": error_body(message, "server_error")})
        return
    for chunk in answer.closing():
        yield _format_event(chunk)
    yield "data: [DONE]\n\n"


async def _split_text(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), SENT_AT_ONCE):
        yield content[at : at + SENT_AT_ONCE]


def _format_event(content: dict[str, object]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _answer_refused(request: Request, error: Refused) -> JSONResponse:
    return error.response()


async def _answer_unrouted(request: Request, error: HTTPException) -> JSONResponse:
    message = f"{request.method} {quoted(request.scope['path'])}: {error.detail}"
    return Refused(message, status=error.status_code, headers=error.headers).response()


async def _answer_broken(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": error_body(f"{type(error).__name__}: {error}", "server_error")}, 500)

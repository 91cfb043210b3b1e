"""The routes: models, chat completions, completions, health. Every error has the shape of OpenAI's."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from flows.serving import asked
from flows.serving.answers import Answer, Chat, Plain
from flows.serving.asked import Asked, Refused
from flows.serving.current import Current, Served
from flows.serving.worker import Job, Piece

LOOK = 1.0
"""Seconds between looks whether whoever asked is still there."""
Reader = Callable[[Any, Any, int], Asked]


def make_app(current: Current) -> FastAPI:
    """The application over what is served at the moment."""
    app = FastAPI(title="posttrain serve", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(Exception, _broken)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [current.served.card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _named(current, name).card()

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _answered(request, current, asked.chat, Chat())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _answered(request, current, asked.text, Plain())

    return app


async def _answered(request: Request, current: Current, read: Reader, words: Chat | Plain) -> Response:
    try:
        body = await request.json()
    except ValueError as error:
        raise Refused(f"the body is no JSON: {error}") from error
    served = _named(current, body.get("model") if isinstance(body, dict) else None)
    tokenizer = served.worker.policy.tokenizer
    understood = read(body, tokenizer, served.worker.max_length)
    answer = Answer(understood, words, served.fingerprint, tokenizer)
    pieces = _pieces(understood, served)
    if understood.stream:
        return StreamingResponse(_stream(answer, pieces), media_type="text/event-stream")
    async with contextlib.aclosing(pieces):
        async for index, piece in pieces:
            if piece is not None:
                answer.choices[index].take(piece)
            elif await request.is_disconnected():
                return Response(status_code=499)
    return JSONResponse(answer.whole())


def _named(current: Current, name: Any) -> Served:
    if not isinstance(name, str):
        raise Refused("model: the name of a model is wanted", "model")
    if name != current.served.name:
        said = f"the model `{name}` does not exist here; there is `{current.served.name}`"
        raise Refused(said, "model", "model_not_found", 404)
    return current.served


async def _pieces(understood: Asked, served: Served) -> AsyncIterator[tuple[int, Piece | None]]:
    """Pieces with the index of their choice, until all have ended; None where nothing came for a while."""
    heard: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear(first: int) -> Callable[[Piece | Exception], None]:
        def tell(piece: Piece | Exception) -> None:
            index = first + (piece.sample if isinstance(piece, Piece) else 0)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(heard.put_nowait, (index, piece))

        return tell

    n = understood.n
    jobs = [Job(ask, n, understood.stops, hear(i * n)) for i, ask in enumerate(understood.asks)]
    left = n * len(jobs)
    try:
        for job in jobs:
            served.worker.submit(job)
        while left:
            try:
                index, piece = await asyncio.wait_for(heard.get(), LOOK)
            except TimeoutError:
                yield 0, None
                continue
            if isinstance(piece, Exception):
                raise piece
            left -= piece.finish is not None
            yield index, piece
    finally:
        for job in jobs:
            job.left = True


async def _stream(answer: Answer, pieces: AsyncIterator[tuple[int, Piece | None]]) -> AsyncIterator[str]:
    for chunk in answer.opening():
        yield _event(chunk)
    try:
        async with contextlib.aclosing(pieces):
            async for index, piece in pieces:
                if piece is not None:
                    yield _event(answer.chunk(index, piece))
    except Exception as error:  # the status was sent long ago: the error is an event
        yield _event({"error": _error(str(error), "server_error")})
        return
    for chunk in answer.closing():
        yield _event(chunk)
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _error(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


async def _refused(request: Request, error: Refused) -> JSONResponse:
    told = _error(error.message, "invalid_request_error", error.param, error.code)
    return JSONResponse({"error": told}, error.status)


async def _unrouted(request: Request, error: HTTPException) -> JSONResponse:
    said = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse({"error": _error(said, "invalid_request_error")}, error.status_code)


async def _broken(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": _error(f"{type(error).__name__}: {error}", "server_error")}, 500)

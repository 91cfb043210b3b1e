"""The engine thread: it admits requests in the order of arrival and advances all samples by one token at a time.

It reports every token to its request by `ServingJob.on_piece`, which must return at once.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from flows.serving.batch import Batch, PromptRequest, Sample, Token
from flows.serving.decoded_text import DecodedText
from learning.generation.engines.slot_attention import use_slot_attention
from learning.models.policy import Policy

Finish = Literal["stop", "length"]
CLOSE_GRACE = 5.0
"""Seconds for which a closed worker still accepts requests that were sent to it just before."""


@dataclass(frozen=True)
class Piece:
    """The new part of one sample."""

    sample: int
    text: str
    tokens: tuple[Token, ...]
    """Tokens not sent yet whose text is part of this piece or an earlier one."""
    made: int
    """Tokens computed so far, the end token included."""
    finish: Finish | None = None


@dataclass(eq=False)
class ServingJob:
    """A request: `n` samples of one prompt."""

    request: PromptRequest
    n: int
    stops: tuple[str, ...]
    on_piece: Callable[["Piece | Exception"], None]
    """Called in the worker's thread; an exception is its last call."""
    left: bool = False
    """Set when the client has left."""
    begun: int = field(default=0, init=False)


@dataclass(eq=False)
class SampleStream:
    """The state between one sample's tokens and its pieces."""

    job: ServingJob
    number: int
    text: DecodedText
    pending: list[tuple[int, Token]] = field(default_factory=list)
    """Tokens not sent yet, each with the length of the text before it."""


class Worker:
    """The engine thread over one policy; `close` lets running requests end."""

    def __init__(self, policy: Policy, *, max_slots: int, max_length: int):
        self.policy, self.max_slots, self.max_length = policy, max_slots, max_length
        self.ends = frozenset(policy.stop_ids)
        self.batch = self._make_batch()
        self.arrived: queue.SimpleQueue[ServingJob | None] = queue.SimpleQueue()
        self.waiting: list[ServingJob] = []
        self.closing = False
        self.thread = threading.Thread(target=self._run, name="serving", daemon=True)
        self.thread.start()

    def submit(self, job: ServingJob) -> None:
        """Queue a request; one that arrives too late receives an error."""
        self.arrived.put(job)
        if not self.thread.is_alive():
            job.on_piece(RuntimeError("this model is no longer served; send the request again"))

    def close(self) -> None:
        """End when no request is running; return at once."""
        self.arrived.put(None)

    def _run(self) -> None:
        with torch.inference_mode(), use_slot_attention(self.policy.model):
            while self._receive():
                try:
                    self._advance(self.batch)
                except Exception as error:  # an error of the model or the device fails all waiting requests
                    for job in {sample.owner.job for sample in self.batch.samples} | set(self.waiting):
                        job.on_piece(error)
                    self.waiting.clear()
                    self.batch = self._make_batch()

    def _make_batch(self) -> Batch:
        return Batch(self.policy.model, self.max_slots, self.max_length)

    def _receive(self) -> bool:
        """Take requests, waiting if there is nothing to do; return False when all is done for good."""
        while True:
            idle = not self.batch.samples and not self.waiting
            try:
                job = self.arrived.get(block=idle, timeout=CLOSE_GRACE if self.closing else None)
            except queue.Empty:
                return not idle
            if job is None:
                self.closing = True
            else:
                self.waiting.append(job)

    def _advance(self, batch: Batch) -> None:
        self.waiting = [job for job in self.waiting if not job.left]
        while self.waiting and batch.room:
            job = self.waiting[0]
            number = min(job.n - job.begun, batch.room)
            samples = [Sample(job.request, i, self._make_stream(job, i)) for i in range(job.begun, job.begun + number)]
            batch.admit(job.request, samples)
            job.begun += number
            if job.begun == job.n:
                self.waiting.pop(0)
        if batch.samples:
            for sample, token in batch.step():
                sample.over = self._send_token(sample, token)
            batch.leave()

    def _make_stream(self, job: ServingJob, number: int) -> SampleStream:
        return SampleStream(job, number, DecodedText(self.policy.tokenizer, job.stops))

    def _send_token(self, sample: Sample, token: Token) -> bool:
        """Pass a token on; return whether the sample is over."""
        stream: SampleStream = sample.owner
        if stream.job.left:
            return True
        ended, full = token.id in self.ends, sample.count == sample.request.max_tokens
        new = ""
        if not ended:
            stream.pending.append((len(stream.text.text), token))
            new = stream.text.add(token.id)
        stopped = ended or stream.text.stopped
        if over := stopped or full:
            new += stream.text.finish()
        all_certain = over and not stream.text.stopped
        sent = tuple(t for at, t in stream.pending if all_certain or at < stream.text.sent)
        stream.pending = [(at, t) for at, t in stream.pending if not all_certain and at >= stream.text.sent]
        finish: Finish | None = ("stop" if stopped else "length") if over else None
        if new or sent or finish:
            stream.job.on_piece(Piece(stream.number, new, sent, sample.count, finish))
        return over

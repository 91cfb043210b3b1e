"""A policy and its engine as the model of lm-eval: completions by the engine, log-likelihoods by the model's forward.

Prompts are tokenised, truncated and scored as by lm-eval's own model of transformers (`HFLM`), so that both give the
same numbers. Shapes: B sequences of L tokens, V vocabulary, C tokens of a continuation.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedTokenizerBase

from learning.data.rendering import fill_template, open_dialogue
from learning.evaluation.sampled_answers import make_row_seed
from learning.evaluation.scored_tasks import ScoringModel
from learning.generation.services.row_streams import stream_completions
from learning.models.packed import LOGITS_PER_CHUNK, choose_forward
from learning.models.padded import compute_logits, get_body
from learning.models.policy import Policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError

BATCH_TOKENS = 4096
"""Most tokens in one forward, with padding."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1, None),
    "top_k": (0, -1, None),
    "min_p": (0, None),
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "repetition_penalty": (1, None),
    "use_cache": (True, False),
}
"""Generation settings of tasks, and the values that change nothing."""
OF_SAMPLING = frozenset({"top_p", "top_k", "min_p"})
"""Settings without effect on greedy decoding."""


@dataclass(frozen=True)
class Wanted:
    """A completion that a task requests: its name in the journal, its prompt and how it is sampled."""

    name: str
    prompt: list[int]
    seed: int


class EngineLM(TemplateLM):
    """Answers lm-eval's requests with a stage's engine and the model's forward."""

    def __init__(self, model: ScoringModel, rows: int) -> None:
        super().__init__()
        self.model, self.rows = model, rows
        self.tokenizer: Any = model.policy.tokenizer
        self.requested = self.answered = 0
        self.scorer: Policy | None = None

    @property
    def eot_token_id(self) -> int:
        """Return the id of the tokenizer's end token."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """Return the id that stands before a text without context: that of the first token, else the end token."""
        named = self.tokenizer.bos_token_id
        return self.eot_token_id if named is None else named

    @property
    def tokenizer_name(self) -> str:
        """Return a name for lm-eval's cache of prompts, which is not used."""
        return "posttrain"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text; special tokens as the tokenizer adds them, but no second first token."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self.tokenizer.decode([self.prefix_token_id]))
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of messages in the model's chat template, with the stage's chat settings."""
        dialogue = open_dialogue(self.tokenizer, list(chat_history))
        resume = not add_generation_prompt
        text = fill_template(self.tokenizer, dialogue, generate=add_generation_prompt, resume=resume)
        for mark, original in dialogue.marked.items():
            text = text.replace(mark, original)
        return text

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return log-likelihood of each continuation, and whether greedy decoding would give it."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the completion of every request up to the first of its stop texts."""
        self.requested += len(requests)
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(json.dumps(_get_arguments(request)[1], sort_keys=True, default=str), []).append(place)
        texts = [""] * len(requests)
        names = list(_name_requests(requests))
        for places in groups.values():
            end_text = self.tokenizer.decode([self.eot_token_id])
            settings = _read_settings(requests[places[0]], end_text)
            wanted = [self._want(names[place], _get_arguments(requests[place])[0], settings) for place in places]
            for place, text in zip(places, self._complete(wanted, settings), strict=True):
                texts[place] = text
        return texts

    def _want(self, name: str, context: str, settings: "Settings") -> Wanted:
        room = self.model.policy.max_length - settings.max_tokens
        if room < 1:
            raise StepError(
                f"lm_eval: {settings.task}: completions of up to {settings.max_tokens} tokens leave no room for a "
                f"prompt in the model's {self.model.policy.max_length}; set a smaller `max_gen_toks`"
            )
        return Wanted(name, self.tok_encode(context)[-room:], make_row_seed(self.model.seed, {"id": name}))

    def _complete(self, wanted: list[Wanted], settings: "Settings") -> list[str]:
        """Return texts from the journal, or sampled; what ended without a stop text in it is sampled to its end."""
        journal = self.model.journal
        texts: dict[str, str] = {one.name: journal[one.name] for one in wanted if one.name in journal}
        self._report(len(texts), 0)
        stop = _find_stop_ids(self.tokenizer, settings.until)
        missing = [one for one in wanted if one.name not in texts]
        sampled: Counter[str] = Counter()
        for sequences in (stop, ()):
            missing = [one for one in missing if one.name not in texts]
            for done, tokens in self._sample(missing, settings, sequences) if missing else ():
                sampled.update(tokens)
                journal.add(done, sampled)
                texts |= done
                self._report(len(done), tokens.total())
        return [texts[one.name] for one in wanted]

    def _sample(
        self, wanted: list[Wanted], settings: "Settings", stop: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[dict[str, str], Counter[str]]]:
        sampling = Sampling(settings.temperature, settings.max_tokens, stop=tuple(stop))
        requests = ((place, Request(one.prompt, 1, one.seed)) for place, one in enumerate(wanted))
        ends = self.model.policy.stop_ids
        for made in stream_completions(self.model.engine, requests, sampling):
            done: dict[str, str] = {}
            for place, one in made:
                text = self.tokenizer.decode(one.token_ids, skip_special_tokens=True)
                cut_early = stop and one.finish == "stop" and one.token_ids[-1] not in ends
                if not cut_early or any(end in text for end in settings.until):
                    done[wanted[place].name] = postprocess_generated_text(text, settings.until, None)
            yield done, Counter({wanted[place].name: one.sampled for place, one in made})

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of every text in windows of the model's length, each token predicted once."""
        windows = [
            [
                (("", ""), *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.model.policy.max_length,
                    context_len=1,
                )
            ]
            for request in requests
        ]
        scores = iter(self._loglikelihood_tokens([window for group in windows for window in group]))
        return [sum(next(scores)[0] for _ in group) for group in windows]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood of each continuation, and whether greedy decoding would give it."""
        self.requested += len(requests)
        most = self.model.policy.max_length
        inputs = [((context + target)[-(most + 1) :][:-1], target) for _, context, target in requests]
        for given, target in inputs:
            if not target or len(target) > len(given):
                raise StepError(f"lm_eval: a continuation of {len(target)} tokens does not fit the model's {most}")
        names = [hashlib.sha256(json.dumps(pair).encode()).hexdigest()[:32] for pair in inputs]
        journal = self.model.journal
        missing = {name: pair for name, pair in zip(names, inputs, strict=True) if name not in journal}
        self._report(len(requests) - len(missing), 0)
        for batch in _make_batches(missing):
            journal.add(dict(zip(batch, self._score([missing[name] for name in batch]), strict=True)))
            self._report(len(batch), 0)
        return [cast(tuple[float, bool], tuple(journal[name])) for name in names]

    @torch.no_grad()
    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        self.scorer = self.scorer or self.model.load_weights()
        forward: Any = self.scorer.model
        longest = max(len(given) for given, _ in pairs)
        # Padding on the right is never seen by the tokens before it.
        ids_BL = torch.tensor([given + [0] * (longest - len(given)) for given, _ in pairs], device=forward.device)
        own_head = choose_forward(forward).head == "own"
        out = forward(input_ids=ids_BL, use_cache=False) if own_head else get_body(forward)(ids_BL, use_cache=False)
        step = max(1, LOGITS_PER_CHUNK // forward.get_output_embeddings().weight.shape[0])
        scores: list[tuple[float, bool]] = []
        for (given, target), row_LX in zip(pairs, out[0], strict=True):
            wanted_CX = row_LX[len(given) - len(target) : len(given)]
            target_C = torch.tensor(target, device=row_LX.device)
            likelihood, likeliest = 0.0, True
            for piece_X, ids in zip(wanted_CX.split(step), target_C.split(step), strict=True):
                lp_CV = (piece_X if own_head else compute_logits(forward, piece_X)).log_softmax(-1)
                likelihood += float(lp_CV.gather(1, ids[:, None]).sum())
                likeliest = likeliest and bool((lp_CV.argmax(-1) == ids).all())
            scores.append((likelihood, likeliest))
        return scores

    def _report(self, answered: int, tokens: int) -> None:
        self.answered += answered
        self.model.on_progress(self.rows * self.answered // max(self.requested, 1), tokens)


@dataclass(frozen=True)
class Settings:
    """How the completions of a task are sampled."""

    task: str
    until: list[str]
    max_tokens: int
    temperature: float


def _read_settings(request: Instance, end_text: str) -> Settings:
    """Return the generation settings of a task. Raise StepError for one that engines do not have."""
    task = str(request.task_name)
    options: dict[str, Any] = dict(normalize_gen_kwargs(_get_arguments(request)[1]))
    until, most = options.pop("until"), options.pop("max_gen_toks")
    greedy = not options.pop("do_sample")
    temperature = options.pop("temperature", 1.0)
    for name, value in options.items():
        if value not in NEUTRAL.get(name, ()) and not (greedy and name in OF_SAMPLING):
            raise StepError(
                f"lm_eval: task {task}: its generation_kwargs have `{name}: {value}`, which engines here do not have; "
                "give a copy of the task without it in `include_path`"
            )
    return Settings(task, [text for text in [*until, end_text] if text], most, 0.0 if greedy else float(temperature))


def _get_arguments(request: Instance) -> tuple[str, dict[str, Any]]:
    """Return prompt and generation settings of a request."""
    return cast(tuple[str, dict[str, Any]], request.args)


def _name_requests(requests: Sequence[Instance]) -> Iterator[str]:
    """Yield a name for each request, by task, problem, prompt, settings and the number of the repetition."""
    repeats: dict[str, Iterator[int]] = {}
    for request in requests:
        asked = json.dumps([request.task_name, request.doc_id, request.idx, *request.args], default=str)
        number = next(repeats.setdefault(asked, count()))
        yield hashlib.sha256(f"{number}\n{asked}".encode()).hexdigest()[:32]


def _find_stop_ids(tokenizer: PreTrainedTokenizerBase, until: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the token ids of stop texts whose tokens always write the text; other texts only cut the completion."""
    sequences = [cast(list[int], tokenizer.encode(text, add_special_tokens=False)) for text in until]
    return [
        tuple(ids)
        for ids, text in zip(sequences, until, strict=True)
        if ids and text in cast(str, tokenizer.decode(ids))
    ]


def _make_batches(inputs: Mapping[str, tuple[list[int], list[int]]]) -> Iterator[list[str]]:
    """Yield names in batches of similar length, the longest first, each of at most `BATCH_TOKENS` with padding."""
    batch: list[str] = []
    width = 0
    for name in sorted(inputs, key=lambda name: -len(inputs[name][0])):
        if batch and (len(batch) + 1) * width > BATCH_TOKENS:
            yield batch
            batch = []
        width = width if batch else len(inputs[name][0])
        batch.append(name)
    if batch:
        yield batch

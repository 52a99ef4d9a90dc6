"""One request's answer while it grows, and the JSON that it is sent as.

All of it belongs to the event loop's thread. What a row got and its reader has not taken yet is kept as one text, so
that a slow reader costs no more memory than its whole answer and makes nobody wait.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxspec.decode.slots import Progress
from jaxspec.pairs.texts import TextStream


class Row:
    """A choice of an answer.

    Attributes:
        index: Its number.
        text: Its text and tokens.
        finish_reason: Why it has ended; None as long as it goes on.
        drafted: Tokens proposed so far.
        accepted_lengths: `[depth + 1]` rounds by the number of draft tokens that they accepted.
    """

    def __init__(self, index: int, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self.index, self.text, self._decode = index, TextStream(decode, stops), decode
        self.finish_reason: str | None = None
        self.drafted, self.accepted_lengths = 0, np.zeros(1, np.int64)
        self._new, self._tokens, self._logprobs, self._told_end = "", [], [], False

    def take(self, one: Progress) -> bool:
        """Takes what a segment gave; whether the row ended at a stop string, so that no more of it is wanted."""
        before = len(self.text.tokens)
        self._new += self.text.feed(one.tokens)
        self.finish_reason = one.finish_reason
        if self.finish_reason is not None:
            self._new += self.text.finish()
        if self.text.stop is not None:
            self.finish_reason = "stop"
        taken = len(self.text.tokens) - before
        self._tokens += self.text.tokens[before:]
        self._logprobs += one.logprobs[:taken]
        self.drafted, self.accepted_lengths = one.drafted, one.accepted_lengths
        return self.text.stop is not None and one.finish_reason is None

    def news(self) -> tuple[str, list[int], list[float], str | None] | None:
        """Text, tokens and log-probabilities since the last call, and why the row has ended; None: nothing new."""
        if self._told_end or not (self._new or self._tokens or self.finish_reason):
            return None
        new = self._new, self._tokens, self._logprobs, self.finish_reason
        self._new, self._tokens, self._logprobs, self._told_end = "", [], [], self.finish_reason is not None
        return new


class Answer:
    """An answer.

    Attributes:
        rows: Its choices.
        error: Why it can't be completed; None as long as it can.
    """

    def __init__(self, rows: Sequence[Row], num_prompt_tokens: int, model: str, is_chat: bool) -> None:
        self.rows, self.num_prompt_tokens, self.model, self.is_chat = rows, num_prompt_tokens, model, is_chat
        self.error: str | None = None
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created, self.begun, self.first = int(time.time()), time.perf_counter(), None
        self.changed = asyncio.Event()

    def take(self, index: int, one: Progress) -> bool:
        """What `Row.take` returns; wakes who waits."""
        if self.first is None:
            self.first = time.perf_counter()
        is_over = self.rows[index].take(one)
        if self.rows[index].finish_reason == "error":
            self.fail("the target's logits hold NaN or +inf, or allow no token: the text can't go on")
        self.changed.set()
        return is_over

    def fail(self, error: str) -> None:
        """Ends the answer with an error."""
        self.error = self.error or error
        self.changed.set()

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or all(row.finish_reason is not None for row in self.rows)

    @property
    def num_tokens(self) -> int:
        """New tokens of all choices."""
        return sum(len(row.text.tokens) for row in self.rows)

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        prompt, new = self.num_prompt_tokens, self.num_tokens
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def speculation(self) -> dict[str, Any]:
        """vLLM's `metrics`: what was drafted and accepted, all choices together."""
        histogram = np.sum([row.accepted_lengths for row in self.rows], axis=0)
        steps, accepted = int(histogram.sum()), int(histogram @ np.arange(len(histogram)))
        drafted = sum(row.drafted for row in self.rows)
        found = {
            "mean_acceptance_length": 1 + accepted / max(steps, 1),
            "draft_acceptance_rate": accepted / max(drafted, 1),
            "acceptance_histogram": histogram.tolist(),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": len(histogram) - 1,
        }
        return {"speculative_decoding": found if drafted else None}

    def whole(self, with_logprobs: bool, with_ids: bool, prompt_ids: Sequence[list[int]]) -> dict[str, Any]:
        """The answer in one object."""
        choices = []
        for row in self.rows:
            text, tokens, logprobs, reason = row.news() or ("", [], [], row.finish_reason)
            choice = self._choice(row, tokens, logprobs, reason, with_logprobs, with_ids)
            choice |= {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            if with_ids and not self.is_chat:
                choice["prompt_token_ids"] = prompt_ids[row.index * len(prompt_ids) // len(self.rows)]
            choices.append(choice)
        found = self._object(choices, "chat.completion" if self.is_chat else "text_completion")
        if with_ids and self.is_chat:
            found["prompt_token_ids"] = prompt_ids[0]
        return found | {"usage": self.usage(), "metrics": self.speculation()}

    def opening(self) -> list[dict[str, Any]]:
        """What a chat's stream begins with: whose turn it is."""
        if not self.is_chat:
            return []
        return [
            self._chunk(row, {"delta": {"role": "assistant", "content": ""}, "finish_reason": None})
            for row in self.rows
        ]

    def chunks(self, with_logprobs: bool, with_ids: bool) -> list[dict[str, Any]]:
        """What is new of every choice, as objects of a stream."""
        found = []
        for row in self.rows:
            news = row.news()
            if news is None:
                continue
            text, tokens, logprobs, reason = news
            if not (text or reason or with_logprobs or with_ids):
                continue  # half a character, or what may become a stop string
            choice = self._choice(row, tokens, logprobs, reason, with_logprobs, with_ids)
            found.append(self._chunk(row, choice | ({"delta": {"content": text}} if self.is_chat else {"text": text})))
        return found

    def closing(self) -> dict[str, Any]:
        """What a stream ends with, where its usage was asked for."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._object([], kind) | {"usage": self.usage(), "metrics": self.speculation()}

    def _chunk(self, row: Row, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._object([{"index": row.index} | choice], kind)

    def _object(self, choices: list[dict[str, Any]], kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _choice(
        self,
        row: Row,
        tokens: list[int],
        logprobs: list[float],
        reason: str | None,
        with_logprobs: bool,
        with_ids: bool,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": row.index, "finish_reason": reason, "logprobs": None}
        if with_logprobs:
            words = [row._decode([token]) for token in tokens]
            choice["logprobs"] = _chat_logprobs(words, logprobs) if self.is_chat else _text_logprobs(words, logprobs)
        if with_ids:
            choice["token_ids"] = tokens
        return choice


def _chat_logprobs(words: list[str], logprobs: list[float]) -> dict[str, Any]:
    """Bytes are null where a token is a part of a character."""
    entries = [
        {
            "token": word,
            "logprob": value,
            "bytes": None if "\ufffd" in word else list(word.encode()),
            "top_logprobs": [],
        }
        for word, value in zip(words, logprobs, strict=True)
    ]
    return {"content": entries}


def _text_logprobs(words: list[str], logprobs: list[float]) -> dict[str, Any]:
    return {"tokens": words, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": None}

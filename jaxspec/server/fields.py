"""What a request may say: OpenAI's fields and vLLM's further ones, checked. What is not served is refused by name."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from jaxspec import documents
from jaxspec.sampling import Sampling

MOST_CHOICES, MOST_PROMPTS, MOST_STOPS, LARGEST_SEED = 128, 64, 16, 2**32 - 1

SAYS_NOTHING = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key")
"""Fields that do not concern what is answered: taken, whatever they say."""

NEUTRAL: Mapping[str, Sequence[Any]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "parallel_tool_calls": (True, False),
}
"""Fields that are not served, with the values at which they ask for nothing."""


class Refused(Exception):
    """A request that is not answered.

    Attributes:
        status: Of HTTP.
        param: The field that it is about, if it is about one.
        code: OpenAI's word for it, if there is one.
    """

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions:
    include_usage: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fields:
    """What both kinds of requests have; None: not said."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    bad_words: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    # ours
    penalise_prompt: bool | None = None
    draft_temperature: float | None = None

    @property
    def num_choices(self) -> int:
        """n."""
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chat(_Fields):
    """A request for `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most new tokens; None: what the context leaves."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def with_logprobs(self) -> bool:
        return bool(self.logprobs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(_Fields):
    """A request for `/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None

    @property
    def limit(self) -> int | None:
        """The most new tokens: 16 where nothing is said, as everywhere."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def with_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more texts, or lists of token ids."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]


Fields = TypeVar("Fields", bound=Chat | Text)


def read(schema: type[Fields], body: bytes) -> Fields:
    """The fields of a request.

    Raises:
        Refused: A field that is not served, is missing, or has a value that it can't have.
    """
    try:
        value = documents.parse(documents.decoded(body, "the body"), "the body")
    except ValueError as error:
        raise Refused(str(error)) from error
    if not isinstance(value, dict):
        raise Refused("the body is not a JSON object")
    known = {field.name for field in dataclasses.fields(schema)}
    said = {}
    for name, one in value.items():
        if name in known:
            said[name] = one
        elif one is not None and name not in SAYS_NOTHING and not _is_neutral(name, one):
            raise Refused(f"{name} is not served here: leave it out", param=name, code="unsupported_parameter")
    options = said.get("stream_options")
    if isinstance(options, dict) and (unknown := [name for name in options if name != "include_usage"]):
        raise Refused(f"stream_options.{unknown[0]} is not served here: leave it out", param="stream_options")
    try:
        fields = documents.checked(schema, said, "the body")
    except ValueError as error:
        name = str(error).removeprefix("the body: ").split(" ")[0].split(".")[0].rstrip(":")
        raise Refused(str(error), param=name if name in known else None) from error
    _check(fields)
    return fields


def sampling(fields: Chat | Text, temperature: float, bad_words: Sequence[Sequence[int]]) -> Sampling:
    """How the tokens are drawn; the default temperature is the server's."""
    bias = {int(token): value for token, value in (fields.logit_bias or {}).items()}
    return Sampling(
        temperature=temperature if fields.temperature is None else fields.temperature,
        top_k=max(0, fields.top_k or 0),
        top_p=1.0 if fields.top_p is None else fields.top_p,
        min_p=fields.min_p or 0.0,
        bias=bias or None,
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        penalise_prompt=bool(fields.penalise_prompt),
        bad_words=list(bad_words),
    )


def messages(chat: Chat) -> list[dict[str, str]]:
    """The messages, each `{"role": …, "content": …}` with the text of its parts.

    Raises:
        Refused: None, or one that is something else than text.
    """
    if not chat.messages:
        raise Refused("messages is empty: give at least one", param="messages")
    found = []
    for place, message in enumerate(chat.messages):
        role, content = message.get("role"), message.get("content")
        more = [name for name, value in message.items() if name not in ("role", "content") and value is not None]
        if more:
            raise Refused(f"messages[{place}].{more[0]} is not served here: leave it out", param="messages")
        if isinstance(content, list):
            if not all(
                isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
                for part in content
            ):
                raise Refused(f"messages[{place}].content has parts that are not of type text", param="messages")
            content = "".join(part["text"] for part in content)
        if not isinstance(role, str) or not isinstance(content, str):
            raise Refused(f"messages[{place}] needs a role and a content, both texts", param="messages")
        found.append({"role": role, "content": content})
    return found


def _is_neutral(name: str, value: Any) -> bool:
    return any(type(value) is type(one) and value == one for one in NEUTRAL.get(name, ()))


def _check(fields: Chat | Text) -> None:
    def among(name: str, value: Any, low: float, high: float) -> None:
        if value is not None and not low <= value <= high:
            raise Refused(f"{name} is {value}; it must be from {low:g} to {high:g}", param=name)

    among("n", fields.n, 1, MOST_CHOICES)
    among("seed", fields.seed, 0, LARGEST_SEED)
    among("top_k", fields.top_k, -1, 2**31 - 1)
    limit = "max_tokens" if fields.max_tokens is not None else "max_completion_tokens"
    among(limit, fields.limit, 1, 2**30 - 1)
    among("min_tokens", fields.min_tokens, 0, 2**30 - 1)
    among("number of stop strings", len(fields.stops), 0, MOST_STOPS)
    if not all(fields.stops):
        raise Refused("stop has an empty text: each needs a character", param="stop")
    for token, value in (fields.logit_bias or {}).items():
        if not token.isdecimal() or not -100 <= value <= 100:
            raise Refused(
                f"logit_bias has {token!r}: {value}; token ids and values from -100 to 100", param="logit_bias"
            )
    if isinstance(fields, Text):
        among("logprobs", fields.logprobs, 0, 0)
        among("number of prompts", len(fields.prompts), 1, MOST_PROMPTS)
    if fields.stream_options is not None and not fields.stream:
        raise Refused("stream_options is for a stream: leave it out, or say stream", param="stream_options")

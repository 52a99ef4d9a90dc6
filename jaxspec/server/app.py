"""The server's routes: OpenAI's completions, chats and models, health and metrics."""

import asyncio
import contextlib
import dataclasses
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import jax
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jaxspec.base import Params
from jaxspec.decode import request as requests
from jaxspec.decode.state import Decoder
from jaxspec.pairs.ready import Pair
from jaxspec.pairs.texts import word_ids
from jaxspec.server import fields as fields_
from jaxspec.server.answers import Answer, Row
from jaxspec.server.engine import Engine, Full, Job, Told
from jaxspec.server.fields import Chat, Refused, Text
from jaxspec.server.meters import Meters
from jaxspec.server.streaming import Stream

READING_SECONDS = 30.0
"""How long a body may take to arrive."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a server is told.

    Attributes:
        model: Its model's name.
        temperature: Of requests that name none.
        max_body: Bytes of a request.
        api_key: What clients must say; None: nothing.
        hosts: The host names that clients may call it by; None: any. A page in a browser could otherwise reach a server
            on loopback under a name of its own.
    """

    model: str
    temperature: float = 1.0
    max_body: int = 1 << 20
    api_key: str | None = None
    hosts: tuple[str, ...] | None = None


class Server:
    """A pair that answers."""

    def __init__(self, pair: Pair, decoder: Decoder, params: dict[str, Params], engine: Engine, settings: Settings):
        self.pair, self.decoder, self.params, self.engine, self.settings = pair, decoder, params, engine, settings
        self.meters = Meters(engine)
        self._answers: set[Answer] = set()
        self._loop: asyncio.AbstractEventLoop

    def app(self) -> Starlette:
        """The application; the engine runs as long as it does."""

        @contextlib.asynccontextmanager
        async def running(app: Starlette) -> AsyncIterator[None]:
            self._loop = asyncio.get_running_loop()
            self.engine.start(self._from_engine(self._tell), self._from_engine(self._fail))
            yield
            await asyncio.to_thread(self.engine.stop)

        routes = [
            Route("/v1/chat/completions", self._guarded(lambda request: self._answer(request, Chat)), methods=["POST"]),
            Route("/v1/completions", self._guarded(lambda request: self._answer(request, Text)), methods=["POST"]),
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._models)),
            Route("/metrics", self._guarded(self._metrics)),
            Route("/health", self._health),
        ]
        return Starlette(routes=routes, lifespan=running, exception_handlers={404: _status, 405: _status})

    def _from_engine(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def told(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                self._loop.call_soon_threadsafe(call, value)

        return told

    def _tell(self, told: Sequence[Told]) -> None:
        for job, sample, one in told:
            answer, first = job.owner
            if sample not in job.ended and answer.take(first + sample, one):
                self.engine.end(job, sample)

    def _fail(self, error: str) -> None:
        for answer in self._answers:
            answer.fail(error)

    def _guarded(self, handle: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """A route behind the key, with errors in OpenAI's form."""

        async def guarded(request: Request) -> Response | Stream:
            try:
                self._check_caller(request)
                return await handle(request)
            except Refused as error:
                self.meters.refused(error.status)
                return _error(error)

        return guarded

    def _check_caller(self, request: Request) -> None:
        key, said = self.settings.api_key, request.headers.get("authorization", "")
        if key is not None and not hmac.compare_digest(said.encode(), f"Bearer {key}".encode()):
            raise Refused("the API key is missing or wrong", 401, code="invalid_api_key")
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:  # a bracket that does not close
            host = None
        if self.settings.hosts is not None and host not in self.settings.hosts:
            raise Refused(f"this server does not answer to the name {host!r}", 403)

    async def _models(self, request: Request) -> Response:
        card = {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "jaxspec"}
        card["max_model_len"] = self.engine.batch.context
        if "name" not in request.path_params:
            return JSONResponse({"object": "list", "data": [card]})
        self._check_model(request.path_params["name"])
        return JSONResponse(card)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")

    async def _health(self, request: Request) -> Response:
        is_well = self.engine.error is None
        return JSONResponse({"status": "ok" if is_well else self.engine.error}, status_code=200 if is_well else 503)

    async def _answer(self, request: Request, schema: type[Chat] | type[Text]) -> Stream:
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise Refused("the body must be application/json", 415)
        read = fields_.read(schema, await self._body(request))
        self._check_model(read.model)
        wanted = await asyncio.to_thread(self._requests, read)
        size = read.num_choices
        rows = [Row(index, self.pair.decode, read.stops) for index in range(size * len(wanted))]
        prompt_ids = [one.prompts[0].tolist() for one in wanted]
        answer = Answer(rows, sum(map(len, prompt_ids)), self.settings.model, isinstance(read, Chat))
        jobs = [Job(one, (answer, place * size)) for place, one in enumerate(wanted)]
        try:
            self.engine.submit(jobs)
        except Full as error:
            raise Refused(f"{error}: try again later", 429, code="queue_full") from error
        except RuntimeError as error:
            raise Refused(str(error), 503) from error
        self._answers.add(answer)

        def close() -> None:
            self._answers.discard(answer)
            for job in jobs:
                for sample in range(size):
                    if rows[job.owner[1] + sample].finish_reason is None:
                        self.engine.end(job, sample)
            self.meters.answered(answer, time.perf_counter() - answer.begun)

        return Stream(answer, read, prompt_ids, close)

    async def _body(self, request: Request) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(READING_SECONDS):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self.settings.max_body:
                        raise Refused(f"the body has more than {self.settings.max_body} bytes", 413)
        except TimeoutError:
            raise Refused(f"the body did not arrive within {READING_SECONDS:g} s", 408) from None
        except ClientDisconnect:
            raise Refused("the client has gone", 499) from None
        return body

    def _check_model(self, name: str) -> None:
        if name != self.settings.model:
            message = f"the model {name!r} is not served; {self.settings.model!r} is"
            raise Refused(message, 404, param="model", code="model_not_found")

    def _requests(self, read: Chat | Text) -> list[requests.Request]:
        """A checked request for each prompt."""
        try:
            if isinstance(read, Chat):
                prompts = [self.pair.encode(fields_.messages(read))]
            else:
                prompts = [one if isinstance(one, list) else self.pair.encode(one, raw=True) for one in read.prompts]
            tokenizer = self.pair.tokenizer
            words = [ids for word in read.bad_words or () for ids in word_ids(tokenizer, word)]
            stop_ids = [*(() if read.ignore_eos else self.pair.stop_ids), *(read.stop_token_ids or ())]
            key = jax.random.key(secrets.randbits(32) if read.seed is None else read.seed)
            keys = [key, *(jax.random.fold_in(key, 2**32 - place) for place in range(1, len(prompts)))]
            return [
                self._request(read, prompt, one, words, stop_ids) for prompt, one in zip(prompts, keys, strict=True)
            ]
        except ValueError as error:
            raise Refused(str(error)) from error

    def _request(
        self, read: Chat | Text, prompt: list[int], key: jax.Array, words: list[list[int]], stop_ids: list[int]
    ) -> requests.Request:
        context = self.engine.batch.context
        limit = context - len(prompt) if read.limit is None else read.limit
        if limit < 1:
            raise Refused(f"the prompt has {len(prompt)} tokens and leaves no room for a new one: {context} is all")
        asked = requests.Asked(
            max_new_tokens=limit,
            sampling=fields_.sampling(read, self.settings.temperature, words),
            stop_ids=stop_ids,
            draft_temperature=read.draft_temperature,
            min_new_tokens=read.min_tokens or 0,
            logprobs=read.with_logprobs,
            num_samples=read.num_choices,
        )
        found = requests.checked(self.decoder, self.params, [prompt], key, asked)
        self.engine.batch.check(found)
        return found


def _error(error: Refused) -> Response:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    headers = {"Retry-After": "1"} if error.status == 429 else {}
    return JSONResponse({"error": said}, status_code=error.status, headers=headers)


async def _status(request: Request, error: Any) -> Response:
    return _error(Refused(f"{request.method} {request.url.path}: {error.detail}", error.status_code))

"""How an answer is sent: whole, or piece by piece; until its reader has gone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.responses import JSONResponse

from jaxspec.server.answers import Answer
from jaxspec.server.fields import Chat, Text

WRITING_SECONDS = 60.0
"""How long a reader may take nothing at all before it counts as gone."""


class Stream:
    """A response for one answer; `close` is called once, however it ends."""

    def __init__(
        self, answer: Answer, read: Chat | Text, prompt_ids: Sequence[list[int]], close: Callable[[], None]
    ) -> None:
        self._answer, self._read, self._prompt_ids, self._close = answer, read, prompt_ids, close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        write = self._stream(send) if self._read.stream else self._whole(scope, receive, send)
        writing = asyncio.ensure_future(write)
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        except (OSError, TimeoutError):
            pass  # the reader has gone, or takes nothing
        finally:
            writing.cancel()
            leaving.cancel()
            self._close()

    async def _whole(self, scope: Any, receive: Any, send: Any) -> None:
        async for _ in self._changes():
            pass
        answer, read = self._answer, self._read
        if answer.error is not None:
            await JSONResponse({"error": _error(answer.error)}, status_code=500)(scope, receive, send)
            return
        found = answer.whole(read.with_logprobs, bool(read.return_token_ids), self._prompt_ids)
        await JSONResponse(found)(scope, receive, send)

    async def _stream(self, send: Any) -> None:
        answer, read = self._answer, self._read
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _write(send, answer.opening())
        async for _ in self._changes():
            await _write(send, answer.chunks(read.with_logprobs, bool(read.return_token_ids)))
        closing = [{"error": _error(answer.error)}] if answer.error is not None else []
        closing += [answer.closing()] if read.has_usage_chunk and answer.error is None else []
        await _write(send, closing)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _changes(self) -> AsyncIterator[None]:
        """Once after each change, the last one among them."""
        is_done = False
        while not is_done:
            await self._answer.changed.wait()
            self._answer.changed.clear()
            is_done = self._answer.is_done
            yield


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Any, objects: Sequence[dict[str, Any]]) -> None:
    """Sends objects of a stream in one piece.

    Raises:
        TimeoutError: The reader takes nothing.
    """
    if objects:
        body = "".join(f"data: {json.dumps(one)}\n\n" for one in objects).encode()
        message = {"type": "http.response.body", "body": body, "more_body": True}
        await asyncio.wait_for(send(message), WRITING_SECONDS)


def _error(message: str) -> dict[str, Any]:
    return {"message": message, "type": "server_error", "param": None, "code": None}

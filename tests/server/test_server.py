"""A server on a port of this machine, asked by OpenAI's own client."""

import asyncio
import contextlib
import json
import socket
import threading

import httpx
import jax
import openai
import pytest
import tiny_pair
import uvicorn

from jaxspec import decode, pairs, tree
from jaxspec.decode.slots import Slots
from jaxspec.server.app import Server, Settings
from jaxspec.server.engine import Engine

KEY, MODEL, QUEUE, CONTEXT = "a-key", "tiny", 40, 120


@contextlib.contextmanager
def listening(served):
    """Serves at `url`; at the end the server is stopped as by Ctrl-C."""
    listener = socket.create_server(("127.0.0.1", 0))
    served.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    served.runner = uvicorn.Server(
        uvicorn.Config(served.app(), log_level="warning", log_config=None, timeout_graceful_shutdown=20)
    )
    thread = threading.Thread(target=served.runner.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield served
    finally:
        served.runner.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def server_of(pair, settings):
    decoder = decode.sequoia(pair.target, pair.draft, tree.k_ary(2, 2))
    engine = Engine(Slots(decoder, pair.params, 4, CONTEXT, first_slots=128), 2, QUEUE)
    return Server(pair, decoder, pair.params, engine, settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pair = pairs.load(tiny_pair.save(tmp_path_factory.mktemp("pair"), {}, 1))
    with listening(server_of(pair, Settings(MODEL, 0.0, 20_000, KEY))) as served:
        yield served
    assert served.engine.error is None


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as one:
        yield one


def alone(server, prompt_ids, count, seed=0, temperature=0.0, **options) -> list[list[int]]:
    """The tokens that `generate` gives the samples of a prompt."""
    given = {"sampling": decode.Sampling(temperature), "stop_ids": server.pair.stop_ids, "logprobs": False, **options}
    found = decode.generate(
        server.decoder, server.params, [prompt_ids], key=jax.random.key(seed), max_new_tokens=count, **given
    )
    return [row[:length].tolist() for row, length in zip(found.tokens, found.lengths, strict=True)]


def test_a_completion_is_what_generate_gives(server, client):
    """Text, tokens, reason and usage; the draft's share in vLLM's names."""
    extra = {"return_token_ids": True}
    found = client.completions.create(model=MODEL, prompt="hello", max_tokens=20, extra_body=extra)
    prompt = server.pair.encode("hello", raw=True)
    (tokens,) = alone(server, prompt, 20)
    choice = found.choices[0]
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == tokens
    assert choice.text == server.pair.decode(tokens)
    assert choice.finish_reason == ("length" if len(tokens) == 20 else "stop")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(prompt), len(tokens))
    assert found.model_extra is not None
    drafts = found.model_extra["metrics"]["speculative_decoding"]
    assert drafts["num_accepted_draft_tokens"] + drafts["num_spec_steps"] == len(tokens)
    assert drafts["num_draft_tokens"] == 6 * drafts["num_spec_steps"]
    assert sum(drafts["acceptance_histogram"]) == drafts["num_spec_steps"]


def test_samples_and_prompts(server, client):
    """Choices lie prompt by prompt; the seed gives the samples of `generate`."""
    extra = {"return_token_ids": True}
    found = client.completions.create(
        model=MODEL, prompt=["abc", "de"], n=3, seed=5, temperature=1.0, max_tokens=8, extra_body=extra
    )
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3, 4, 5]
    tokens = [(choice.model_extra or {})["token_ids"] for choice in found.choices]
    wanted = alone(server, server.pair.encode("abc", raw=True), 8, 5, 1.0, num_samples=3)
    assert tokens[:3] == wanted
    assert len({*map(tuple, tokens)}) == 6


def test_a_chat_is_streamed(server, client):
    """The pieces are the whole text; the last chunk has the usage."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    options = {"model": MODEL, "messages": messages, "max_completion_tokens": 30}
    whole = client.chat.completions.create(**options, logprobs=True)
    chunks = [*client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})]
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert chunks[-1].usage == whole.usage
    (tokens,) = alone(server, server.pair.encode("hi"), 30)
    entries = whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries if entry.bytes is not None) != ""
    assert len(entries) == len(tokens)
    assert all(entry.logprob <= 0 for entry in entries)


def test_a_stop_string_ends_the_text(server, client):
    whole = client.completions.create(model=MODEL, prompt="stop here", max_tokens=40).choices[0].text
    stop = whole[9:11]
    for streamed in (False, True):
        found = client.completions.create(model=MODEL, prompt="stop here", max_tokens=40, stop=[stop], stream=streamed)
        choices = [choice for one in (found if streamed else [found]) for choice in one.choices]
        assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
        assert choices[-1].finish_reason == "stop"


def test_two_hundred_requests_at_once(server):
    """Sixteen at a time, some of whose readers go in the middle, and some slow: every other text is its own."""
    prompts = [f"question {number}" for number in range(200)]
    wanted = decode.generate(
        server.decoder,
        server.params,
        [server.pair.encode(prompt, raw=True) for prompt in prompts],
        key=jax.random.key(0),
        max_new_tokens=[4 + number % 9 for number in range(200)],
        stop_ids=server.pair.stop_ids,
        logprobs=False,
    )

    async def ask(one, turns, number):
        options = {"model": MODEL, "prompt": prompts[number], "max_tokens": 4 + number % 9}
        async with turns:
            if number % 10 == 3:  # goes at the first piece
                async with await one.completions.create(**options | {"max_tokens": 90}, stream=True) as stream:
                    async for _ in stream:
                        return None
            if number % 2:
                return (await one.completions.create(**options)).choices[0].text
            pieces = []
            async for chunk in await one.completions.create(**options, stream=True):
                pieces += [choice.text for choice in chunk.choices]
                if number % 20 == 4:
                    await asyncio.sleep(0.05)
            return "".join(pieces)

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as one:
            turns = asyncio.Semaphore(16)
            return await asyncio.gather(*(ask(one, turns, number) for number in range(200)))

    for number, text in enumerate(asyncio.run(all_of_them())):
        if number % 10 != 3:
            assert text == server.pair.decode(wanted.tokens[number]), f"request {number}"


def test_readers_who_take_nothing_make_nobody_wait(server, client):
    """They hold a connection each, and no slot for longer than their text."""
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 100, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    address = server.url.removeprefix("http://").split(":")
    readers = [socket.create_connection((address[0], int(address[1]))) for _ in range(8)]
    for reader in readers:
        reader.sendall(head.encode() + body)
    found = client.completions.create(model=MODEL, prompt="hello", max_tokens=5, timeout=60)
    assert found.usage.completion_tokens == 5
    for reader in readers:
        reader.close()


def test_the_queue_is_bounded(client):
    with pytest.raises(openai.RateLimitError, match="rows wait already"):
        client.completions.create(model=MODEL, prompt="x", n=QUEUE + 1, max_tokens=5)


BAD = [
    ({"tools": [{"type": "function"}]}, "tools is not served"),
    ({"frobnicate": 1}, "frobnicate is not served"),
    ({"top_logprobs": 3}, "top_logprobs is not served"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"temperature": -1}, "temperature=-1"),
    ({"n": 0}, "n is 0"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": 200}, "rows have at most 120"),
    ({"seed": -1}, "seed is -1"),
    ({"stop": [""]}, "stop has an empty text"),
    ({"logit_bias": {"x": 1}}, "logit_bias has 'x'"),
    ({"logit_bias": {"999": 1}}, "names token 999"),
    ({"stop_token_ids": [999]}, "stop_ids holds 999"),
    ({"stream_options": {"include_usage": True}}, "stream_options is for a stream"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "continuous_usage_stats is not served"),
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not of type text"),
    ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "name is not served"),
    ({"messages": [{"role": "user", "content": "a\ud800"}]}, "surrogate"),
    ({"messages": [{"role": "user", "content": "x" * 300}]}, "leaves no room"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_requests_are_named(server, fields, message):
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    found = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
    assert found.status_code == 400
    assert message in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        ("{", {}, 400),
        ("[" * 100_000, {}, 413),
        ("[" * 10_000, {}, 400),
        ('{"model": "other", "messages": [{"role": "user", "content": "hi"}]}', {}, 404),
        ("{}", {"Authorization": "Bearer b"}, 401),
        ("{}", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_statuses(server, content, headers, status):
    sent = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"} | headers
    found = httpx.post(f"{server.url}/v1/chat/completions", content=content, headers=sent)
    assert found.status_code == status
    assert found.json()["error"]["message"]


def test_models_health_and_metrics(server, client):
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    assert httpx.get(f"{server.url}/nothing").status_code == 404
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    for name in ("num_requests_running", "generation_tokens_total", "spec_decode_num_accepted_tokens_total"):
        assert f"\njaxspec_{name}" in text


def test_what_runs_is_finished_when_the_server_stops(server):
    """No new one is taken; the engine's thread has ended."""
    with listening(server_of(server.pair, Settings(MODEL, 0.0, hosts=("127.0.0.1",)))) as other:
        one = openai.OpenAI(base_url=f"{other.url}/v1", api_key="none", max_retries=0)
        chunks = iter(one.completions.create(model=MODEL, prompt="hello", max_tokens=90, stream=True))
        text = next(chunks).choices[0].text
        assert httpx.get(f"{other.url}/v1/models", headers={"Host": "evil.example:80"}).status_code == 403
        other.runner.should_exit = True
        text += "".join(chunk.choices[0].text for chunk in chunks)
        one.close()
    (tokens,) = alone(server, server.pair.encode("hello", raw=True), 90)
    assert text == server.pair.decode(tokens)
    assert not other.engine._thread.is_alive()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{other.url}/health")


def test_a_decoder_that_fails_is_told(server, monkeypatch):
    """Who waits hears of it, later requests too, and so does whoever watches the server's health."""
    with listening(server_of(server.pair, Settings(MODEL, 0.0))) as other:

        def broken(max_rounds):
            raise FloatingPointError("planted")

        monkeypatch.setattr(other.engine.batch, "advance", broken)
        body = {"model": MODEL, "prompt": "x"}
        for status in (500, 503):
            found = httpx.post(f"{other.url}/v1/completions", json=body)
            assert found.status_code == status
            assert "the decoder has failed (FloatingPointError)" in found.json()["error"]["message"]
        assert httpx.get(f"{other.url}/health").status_code == 503

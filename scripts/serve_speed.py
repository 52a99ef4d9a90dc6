"""Latency and speed of `jaxspec serve` against `decode.generate`, at several numbers of clients.

    python scripts/serve_speed.py --prompts spec_bench.jsonl --out scripts/results/serve.json

Each client sends its prompt several times, one after the other, all clients at once, to a server in a process of its
own, and reads the stream. `generate` decodes as many prompts as one batch; its first token is that of `decode.stream`.
Both are greedy and compiled before; every answer has the same number of tokens.
"""

import argparse
import concurrent.futures
import json
import statistics
import subprocess
import sys
import time

import httpx
import jax

from jaxspec import decode, pairs, records
from jaxspec.catalogue import choosing, prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--turns", type=int, default=2, help="how often each client sends its prompt")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    args = parser.parse_args()
    pair = pairs.load()
    most = max(args.clients)
    texts = [pair.decode(prompts.encode(pair, one, args.prompt_tokens)) for one in prompts.read(args.prompts, most)]
    ids = [pair.encode(text, raw=True) for text in texts]
    choice = choosing.choose("auto", choosing.Asked({}, 0.0), pair)
    found = {"generate": generated(pair, choice, ids, args)}
    del pair
    found["serve"] = served(texts, args)
    for name, rows in found.items():
        for row in rows:
            print(name, row)
    records.save_result(args.out, vars(args), **found, config=choice.config())


def generated(pair: pairs.Pair, choice: choosing.Choice, ids: list[list[int]], args: argparse.Namespace) -> list[dict]:
    """Of one batch for each number of clients, the second of two runs."""
    decoder, rows = choice.decoder(pair), []
    for count in args.clients:
        options = {"key": jax.random.key(0), "max_new_tokens": args.max_new_tokens}
        decode.generate(decoder, pair.params, ids[:count], **options, logprobs=False)
        start = time.perf_counter()
        result = decode.generate(decoder, pair.params, ids[:count], **options, logprobs=False)
        seconds = time.perf_counter() - start
        next(decode.stream(decoder, pair.params, ids[:count], **options))
        start = time.perf_counter()
        next(decode.stream(decoder, pair.params, ids[:count], **options))
        first = time.perf_counter() - start
        rows.append(
            {"clients": count, "tokens_per_second": int(result.lengths.sum()) / seconds, "first_token_seconds": first}
        )
    return rows


def served(texts: list[str], args: argparse.Namespace) -> list[dict]:
    """Of the server, for each number of clients; each asks once before, so that programs are compiled."""
    words = ["serve", "--json", "--port", "0", "--slots", str(max(args.clients)), "--temperature", "0"]
    process = subprocess.Popen([sys.executable, "-m", "jaxspec", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        rows = []
        for count in args.clients:
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                ask = [pool.submit(answers, said, texts[client], 1, args) for client in range(count)]
                concurrent.futures.wait(ask)
                start = time.perf_counter()
                ask = [pool.submit(answers, said, texts[client], args.turns, args) for client in range(count)]
                timed = [one for done in ask for one in done.result()]
                seconds = time.perf_counter() - start
            firsts = sorted(first for first, _ in timed)
            rows.append(
                {
                    "clients": count,
                    "tokens_per_second": sum(tokens for _, tokens in timed) / seconds,
                    "first_token_seconds": statistics.median(firsts),
                    "slowest_first_token_seconds": firsts[-1],
                }
            )
        return rows
    finally:
        process.terminate()
        process.wait()


def answers(said: dict, text: str, turns: int, args: argparse.Namespace) -> list[tuple[float, int]]:
    """Seconds until the first token, and tokens, of each of a client's answers."""
    body = {"model": said["model"], "prompt": text, "max_tokens": args.max_new_tokens, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    found = []
    for _ in range(turns):
        start, first, tokens = time.perf_counter(), None, 0
        with httpx.stream("POST", f"{said['url']}/completions", json=body, timeout=600) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    first = first or time.perf_counter() - start
                    tokens += sum(len(one["token_ids"]) for one in json.loads(line[6:])["choices"])
        assert first is not None
        found.append((first, tokens))
    return found


if __name__ == "__main__":
    main()

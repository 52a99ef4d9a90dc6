"""How fast decoding and whole speculative rounds are on one GPU, against what bounds them. Weights are random.

    PYTHONPATH=. python3 scripts/gpu/bench.py [--sections plain,verify,...] [--form scan-columns] [--out FILE]

The target has the shapes of Llama-2-7B, the draft those of JackFram/llama-68m, in bfloat16. Sections:

    plain     plain decoding, ms a token, against one reading of the weights at the bandwidth measured here
    verify    t(n): one forward of the target over n = 1 ... 1024 tokens in flight
    draft     one forward of the draft by width, 1 ... 64
    layers    layers scanned against unrolled, products of columns against rows, with the compile time apart
    rounds    whole SEQUOIA rounds at the paper's (n, levels), acceptance drawn from published vectors
    torch     plain and assisted decoding of the same shapes in torch + transformers (needs CUDA)
    smollm2   plain decoding and t(n) of SmolLM2-135M-Instruct, where its GGUF file is there

Tables go to stdout, progress to stderr, numbers to one JSON that is written anew after each section. A section that
fails is recorded with its traceback, the others go on, and the exit status is 1.
"""

import argparse
import dataclasses
import datetime
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from harness import DTYPE, FORMS, Bench, Line, Network, Rounds, Skipped, initialised
from rich.console import Console
from rich.table import Table
from shapes import LLAMA_3, PAPER, PAPER_DRAFT_MS, PAPER_PLAIN_MS, SEQUOIA_REPOSITORY, SHAPES, VECTORS, Published
from torch_peer import torch_lines

from jaxspec import decode, networks, plan, profiles, records
from jaxspec.networks import Transformer
from jaxspec.pairs import fetching
from jaxspec.tree import TokenTree

TEMPERATURES = 0.0, 0.6
SCHEMA = 1


def plain(bench: Bench) -> Iterator[Line]:
    """Plain decoding of the target, ms a token, against the reading of its weights."""
    for temperature in TEMPERATURES:
        yield {"temperature": temperature} | _plain_line(bench, bench.target, bench.plain(temperature))


def verify(bench: Bench) -> Iterator[Line]:
    """t(n) of the target, ms a forward over n tokens, and over t(1) at the same capacity."""
    for capacity, sizes in bench.shapes.verify_sizes.items():
        alone = None
        for n in sizes:
            bench.begin(f"target over {n} tokens, capacity {capacity}")
            line = bench.step(bench.target, n, bench.shapes.target_steps, capacity)
            alone = alone or line["ms"]
            bench.verify_ms.setdefault(n, line["ms"])
            yield {"capacity": capacity} | line | {"over_t1": line["ms"] / alone}


def draft(bench: Bench) -> Iterator[Line]:
    """A draft step by its width, ms."""
    for width in bench.shapes.draft_widths:
        bench.begin(f"draft over {width} tokens")
        line = bench.step(bench.draft, width, bench.shapes.draft_steps)
        bench.draft_ms[width] = line["ms"]
        yield line


def layers(bench: Bench) -> Iterator[Line]:
    """The same few layers of the target in every form, ms a forward."""
    config = dataclasses.replace(bench.shapes.target, num_layers=bench.shapes.compared_layers)
    bench.begin(f"weights of {config.num_layers} layers")
    apart = initialised(config, 2)
    stacked = Transformer(config, DTYPE, scan_layers=True).stack(apart.params)
    for form, options in FORMS.items():
        network = Network(Transformer(config, DTYPE, **options), stacked if options["scan_layers"] else apart.params)
        for n in bench.shapes.compared_sizes:
            bench.begin(f"{config.num_layers} layers, {form}, {n} tokens")
            line = bench.step(network, n, bench.shapes.target_steps)
            yield {"form": form, "layers": config.num_layers} | line


def rounds(bench: Bench) -> Iterator[Line]:
    """Whole rounds, ms. `tokens` (what the vector expects) gives ms a token; `drawn_tokens` is what the rounds gave."""
    size_limit, depth_limit = bench.shapes.max_tree
    settings: dict[tuple[float, int, int], list[str]] = {}
    for paper in PAPER:
        setting = paper.temperature, min(paper.size, size_limit), min(paper.levels - 1, depth_limit)
        is_cut = setting[1:] != (paper.size, paper.levels - 1)
        said = f"{paper.task} {paper.speedup:.2f}x ({paper.tokens:.2f})"
        settings.setdefault(setting, []).append("–" if is_cut else said)
    wanted = [(SEQUOIA_REPOSITORY, setting) for setting in settings]
    wanted.append((LLAMA_3, next(iter(settings))))
    for published, (temperature, size, depth) in wanted:
        shape = plan.optimal_tree(published.acceptance, size, depth)
        alone = bench.plain(temperature)
        bench.begin(f"rounds of ({size}, {depth + 1}), {published.name}, T={temperature:g}")
        measured = bench.drawn(published, shape, temperature)
        expected = plan.expected_tokens(shape, published.acceptance)
        yield {
            "acceptance": published.name,
            "temperature": temperature,
            "nodes": size,
            "levels": depth + 1,
            "round_ms": measured.round_ms,
            "parts_ms": _parts_ms(bench, published, shape),
            "tokens": expected,
            "drawn_tokens": measured.tokens,
            "drawn_rounds": measured.num_rounds,
            "ms_per_token": measured.round_ms / expected,
            "plain_ms": alone.round_ms,
            "speedup": alone.round_ms * expected / measured.round_ms,
            "compile_s": measured.compile_s,
            "paper_a100": ", ".join(dict.fromkeys(settings[temperature, size, depth])),
        }


def torch(bench: Bench) -> Iterator[Line]:
    """Plain and assisted greedy decoding in torch + transformers beside ours, ms."""
    if jax.default_backend() != "gpu":
        raise Skipped(f"jax runs on {jax.default_backend()}, and torch is set beside it on a CUDA GPU only")
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise Skipped(f"{name} is not installed")
    import torch as pytorch  # pyright: ignore[reportMissingImports] (the extra `torch`)

    if not pytorch.cuda.is_available():
        raise Skipped(f"torch {pytorch.__version__} sees no CUDA device")
    yield from torch_lines(bench, "cuda")


def smollm2(bench: Bench) -> Iterator[Line]:
    """Plain decoding (ms a token) and t(n) of SmolLM2-135M-Instruct. Nothing is downloaded."""
    path = bench.gguf
    if path is None:
        path = fetching.cache_folder() / fetching.DEFAULT / fetching.SOURCES[fetching.DEFAULT].file
        if not bench.shapes.smollm2_sizes:
            raise Skipped("these shapes leave it out; --gguf names a file to take all the same")
        if not path.is_file():
            raise Skipped(f"{path} is not there; --gguf names a file elsewhere")
    bench.begin(f"weights of {path.name}")
    network = Network(*networks.load(path, DTYPE, **FORMS[bench.form]))
    bench.begin("SmolLM2: plain decoding")
    measured = bench.rounds(decode.autoregressive(network.model), {"target": network.params}, 0.0)
    yield {"what": "plain token", "n": 1} | _plain_line(bench, network, measured)
    for n in bench.shapes.smollm2_sizes:
        bench.begin(f"SmolLM2 over {n} tokens")
        yield {"what": "forward"} | bench.step(network, n, bench.shapes.target_steps)


SECTIONS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "plain": plain,
    "verify": verify,
    "draft": draft,
    "layers": layers,
    "rounds": rounds,
    "torch": torch,
    "smollm2": smollm2,
}


def _plain_line(bench: Bench, network: Network, measured: Rounds) -> Line:
    floor = bench.ceilings.floor_ms(network, 1)
    return {
        "ms": measured.round_ms,
        "floor_ms": floor,
        "over_floor": measured.round_ms / floor,
        "gb_per_second": network.bytes_read / measured.round_ms / 1e6,
        "compile_s": measured.compile_s,
    }


def _parts_ms(bench: Bench, published: Published, shape: TokenTree) -> float | None:
    """A round's forwards as they were measured alone; None where they were not."""
    if not bench.verify_ms or not bench.draft_ms:
        return None
    profile = profiles.Profile(published.acceptance, verify_ms=bench.verify_ms, draft_ms=bench.draft_ms)
    return plan.predict(shape, profile).round_ms


def run_section(bench: Bench, name: str) -> dict[str, Any]:
    """A section's entry in the JSON: "status" ok, skipped or failed, its rows as far as it came, and the reason."""
    entry: dict[str, Any] = {"status": "ok", "rows": []}
    start = bench.elapsed
    try:
        for line in SECTIONS[name](bench):
            entry["rows"].append(line)
    except Skipped as reason:
        entry |= {"status": "skipped", "reason": str(reason)}
    except Exception:  # a lease is short: the other sections are measured all the same
        entry |= {"status": "failed", "reason": traceback.format_exc()}
    return entry | {"seconds": bench.elapsed - start}


def show(console: Console, name: str, entry: dict[str, Any]) -> None:
    """Prints a section's rows as one table, and why there are no more."""
    columns = dict.fromkeys(column for line in entry["rows"] for column in line)
    if columns:
        first_line, _, _ = (SECTIONS[name].__doc__ or "").partition("\n")
        title = f"{name}: {first_line}"
        table = Table(*(column.replace("_", " ") for column in columns), title=title, title_justify="left")
        for line in entry["rows"]:
            table.add_row(*(_cell(line.get(column)) for column in columns))
        console.print(table)
    if "reason" in entry:
        console.print(f"{name} {entry['status']}: {entry['reason']}", markup=False, highlight=False)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def header(bench: Bench, arguments: Sequence[str]) -> dict[str, Any]:
    """What the numbers belong to: command, machine, versions, sizes, and where acceptance and references come from."""
    device = jax.devices()[0]
    return {
        "schema": SCHEMA,
        "command": ["scripts/gpu/bench.py", *arguments],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": records.machine_description(),
        "device": {
            "kind": device.device_kind,
            "platform": getattr(getattr(device, "client", None), "platform_version", None),
        },
        "versions": records.library_versions(),
        "dtype": DTYPE,
        "form": bench.form,
        "shapes": dataclasses.asdict(bench.shapes),
        "acceptance": [dataclasses.asdict(published) for published in VECTORS],
        "paper_a100": {
            "plain_ms": PAPER_PLAIN_MS,
            "draft_ms": PAPER_DRAFT_MS,
            "rows": [dataclasses.asdict(paper) for paper in PAPER],
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sections asked for; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    default_out = Path(os.environ.get("OUT", ".")) / "gpu_bench.json"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated; default: %(default)s")
    parser.add_argument("--shapes", default="full", choices=SHAPES, help="tiny: so small that a CPU runs it as a test")
    parser.add_argument("--form", default="scan-columns", choices=FORMS, help="of the target; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=5.5, help="no row is begun later; default: %(default)s")
    parser.add_argument("--gguf", type=Path, help="SmolLM2's file; default: the one in the user's cache, if there")
    parser.add_argument("--out", type=Path, default=default_out, help="the JSON; default: %(default)s")
    options = parser.parse_args(arguments)
    names = options.sections.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")

    bench = Bench(SHAPES[options.shapes], options.form, options.minutes * 60, options.gguf)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    result = header(bench, arguments) | {"ceilings": None, "seconds": 0.0, "sections": {}}
    console.print(f"{result['machine']}; {result['versions']}", highlight=False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        entry = result["sections"][name] = run_section(bench, name)
        show(console, name, entry)
        if "ceilings" in vars(bench):  # measured by now
            result["ceilings"] = bench.ceilings._asdict()
        result["seconds"] = bench.elapsed
        records.write(options.out, result, indent=2)
    if rates := result["ceilings"]:
        said = ", ".join(f"{name.replace('_per_', '/').replace('_', ' ')} {rate:.4g}" for name, rate in rates.items())
        console.print(f"device: {said}", highlight=False)
    if "rounds" in names:
        for published in VECTORS:
            console.print(f"acceptance {published.name!r}: {published.source}", highlight=False)
        reference = f"SEQUOIA's speedup (tokens a round) on one A100, over {PAPER_PLAIN_MS} ms a plain token there"
        console.print(f"paper a100: {reference}", highlight=False)
    print(f"[{bench.elapsed:6.1f} s] written to {options.out}", file=sys.stderr)
    return int(any(entry["status"] == "failed" for entry in result["sections"].values()))


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory beside jax
    sys.exit(main())

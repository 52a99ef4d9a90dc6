"""The GPU benchmark with tiny networks on whatever runs the tests: its record, and the law of its drawn rounds."""

import itertools
import json
import math

import bench
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from compiled import for_users, operations_of
from drawn import DrawnRule, drawn_tree
from harness import Bench, Skipped
from shapes import PAPER, SHAPES, VECTORS

from jaxspec import cache, decode, plan, verify
from jaxspec import tree as trees

ACCEPTANCE = (0.5, 0.2, 0.1)
SHAPE = trees.TokenTree((-1, 0, 0, 0, 1, 1, 2, 4))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The JSON of a run over all sections."""
    out = tmp_path_factory.mktemp("bench") / "made" / "bench.json"
    assert bench.main(["--shapes", "tiny", "--out", str(out)]) == 0
    return json.loads(out.read_text())


def test_says_what_the_numbers_belong_to(record):
    assert record["schema"] == bench.SCHEMA
    assert record["device"]["kind"] == jax.devices()[0].device_kind
    assert record["versions"]["jax"] == jax.__version__
    assert record["machine"]
    assert record["command"][1:3] == ["--shapes", "tiny"]
    assert record["shapes"]["target"]["vocab_size"] == 61
    assert len(record["paper_a100"]["rows"]) == len(PAPER)
    assert all(published["source"] for published in record["acceptance"])
    assert set(record["ceilings"]) == {"read_gb_per_second", "copy_gb_per_second", "tflop_per_second"}
    assert all(rate > 0 for rate in record["ceilings"].values())
    assert set(record["sections"]) == set(bench.SECTIONS)


def test_every_section_has_its_rows(record):
    sections = record["sections"]
    for name in ("plain", "verify", "draft", "layers", "rounds"):
        assert sections[name]["status"] == "ok", sections[name]
        assert sections[name]["seconds"] >= 0
        for row in sections[name]["rows"]:
            assert all(math.isfinite(value) for value in row.values() if isinstance(value, float)), row
    assert [row["temperature"] for row in sections["plain"]["rows"]] == [0.0, 0.6]
    assert [row["n"] for row in sections["verify"]["rows"]] == [1, 4]
    assert [row["n"] for row in sections["draft"]["rows"]] == [1]
    assert [row["form"] for row in sections["layers"]["rows"]] == list(bench.FORMS)
    for name in ("verify", "draft", "layers"):
        assert all({"ms", "floor_ms", "compile_s"} <= set(row) and row["ms"] > 0 for row in sections[name]["rows"])


def test_rounds_emit_what_a_tree_can(record):
    rows = record["sections"]["rounds"]["rows"]
    measured = [(row["acceptance"], row["temperature"]) for row in rows]
    assert measured == [("repository", 0.0), ("repository", 0.6), ("Llama 3", 0.0)]
    for row in rows:
        assert 1 <= row["drawn_tokens"] <= row["levels"]
        assert 1 < row["tokens"] <= row["levels"]
        assert row["drawn_rounds"] > 0
        assert row["parts_ms"] > 0
        assert row["ms_per_token"] == pytest.approx(row["round_ms"] / row["tokens"])
        assert row["speedup"] == pytest.approx(row["plain_ms"] / row["ms_per_token"])
        assert row["paper_a100"] == "–"  # its sizes were cut


def test_says_why_a_section_was_skipped(record, tmp_path, monkeypatch):
    sections = record["sections"]
    if jax.default_backend() != "gpu":
        assert sections["torch"]["status"] == "skipped"
        assert "CUDA" in sections["torch"]["reason"]
    assert sections["smollm2"]["status"] == "skipped"
    assert "--gguf" in sections["smollm2"]["reason"]
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    with pytest.raises(Skipped, match="is not there"):
        next(bench.smollm2(Bench(SHAPES["full"], "scan-columns", 60.0, None)))


def test_one_failed_section_stops_no_other(tmp_path, monkeypatch, capsys):
    def broken(_):
        yield {"n": 1}
        raise RuntimeError("out of memory")

    monkeypatch.setitem(bench.SECTIONS, "draft", broken)
    out = tmp_path / "bench.json"
    assert bench.main(["--shapes", "tiny", "--sections", "draft,smollm2", "--out", str(out)]) == 1
    sections = json.loads(out.read_text())["sections"]
    assert sections["draft"]["status"] == "failed"
    assert sections["draft"]["rows"] == [{"n": 1}]
    assert "RuntimeError: out of memory" in sections["draft"]["reason"]
    assert "Traceback" in sections["draft"]["reason"]
    assert sections["smollm2"]["status"] == "skipped"
    assert "out of memory" in capsys.readouterr().out


def test_begins_nothing_after_its_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    assert bench.main(["--shapes", "tiny", "--minutes", "0", "--sections", "plain,rounds"]) == 0
    sections = json.loads((tmp_path / "gpu_bench.json").read_text())["sections"]
    for entry in sections.values():
        assert entry["status"] == "skipped"
        assert "budget" in entry["reason"]


def test_refuses_an_unknown_section(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--sections", "plian"])
    assert "plian" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_drawn_rounds_have_the_published_law(temperature, key):
    pair = toys.pair("table")
    decoder = drawn_tree(pair.target, pair.draft, SHAPE, ACCEPTANCE)
    batch, num_rounds = 256, 10
    stream = decode.stream(
        decoder,
        pair.params,
        [[row % pair.target.vocab_size, 1] for row in range(batch)],
        key=key,
        max_new_tokens=num_rounds * decoder.max_emitted + 1,  # no round is cut
        sampling=decode.Sampling(temperature=temperature),
    )
    emitted = np.array([[len(tokens) for tokens in chunk] for chunk in itertools.islice(stream, num_rounds)])
    assert emitted.shape == (num_rounds, batch)
    assert emitted.min() == 1
    assert emitted.max() == SHAPE.depth + 1
    error = emitted.std() / math.sqrt(emitted.size)
    assert emitted.mean() == pytest.approx(plan.expected_tokens(SHAPE, ACCEPTANCE), abs=4 * error)
    # Not the mean alone: the accepted path reaches each depth as often as the scores of its nodes say.
    scores = plan.node_scores(SHAPE, ACCEPTANCE)
    for depth in range(1, SHAPE.depth + 1):
        share = scores[SHAPE.depths == depth].sum()
        spread = math.sqrt(share * (1 - share) / emitted.size)
        assert (emitted > depth).mean() == pytest.approx(share, abs=4 * spread)


def test_the_rule_draws_but_leaves_no_work_out():
    num_tokens, children = 512, jnp.arange(3)
    probs = jax.nn.softmax(jnp.linspace(-1.0, 1.0, num_tokens)), jnp.full(num_tokens, 1 / num_tokens)
    active = jnp.array([True, True, False])
    drawn, real = DrawnRule(ACCEPTANCE), verify.SEQUOIA
    accept, rest = drawn.outcome(*probs, children, active)
    assert accept.tolist() == pytest.approx([0.5, 0.2, 0.0])
    np.testing.assert_array_equal(rest, real.outcome(*probs, children, active)[1])

    def operations(rule):
        return operations_of(for_users(jax.jit(rule.outcome).lower(*probs, children, active)))

    assert operations(drawn) >= operations(real)


def test_refuses_an_acceptance_that_is_too_short():
    pair = toys.pair("table")
    with pytest.raises(ValueError, match="3 siblings, but the acceptance covers 2"):
        drawn_tree(pair.target, pair.draft, SHAPE, ACCEPTANCE[:2])


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_short_and_a_long_generation_are_one_program(shapes):
    chain = trees.chain(shapes.chain_length)
    deepest = max(min(shapes.max_tree[1], max(paper.levels - 1 for paper in PAPER)), chain.depth)
    slots = {
        cache.bucket(shapes.prompt_length + limit + emitted)
        for limit in shapes.num_tokens
        for emitted in (1, deepest + 1)
    }
    assert len(slots) == 1
    for published, paper in itertools.product(VECTORS, PAPER):
        tree = plan.optimal_tree(published.acceptance, paper.size, paper.levels - 1)
        assert tree.depth <= paper.levels - 1


def test_full_shapes_are_those_of_the_checkpoints():
    full = SHAPES["full"]
    for config, size in ((full.target, 6_738_415_616), (full.draft, 68_030_208)):
        shapes = toys.Transformer(config, "bfloat16").shapes()
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == size

"""What `bench.py` measures: the networks' shapes, published acceptance vectors, and the paper's settings."""

import dataclasses

from jaxspec.networks import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of everything that is measured.

    Attributes:
        target: The target's constants.
        draft: The draft's.
        verify_sizes: Tokens in flight of the target by capacity of its context.
        draft_widths: Tokens in flight of the draft.
        compared_layers: Layers of the target where scanned and unrolled ones are compared.
        compared_sizes: Tokens in flight there.
        smollm2_sizes: Tokens in flight of SmolLM2; none leave it out unless its file is named.
        max_tree: Nodes and depth (edges) that the paper's trees are cut to.
        prompt_length: Tokens.
        num_tokens: New tokens of the short and the long generation whose difference is timed. With the prompt and a
            round behind them both fall into one bucket of capacity, so that they are one program.
        target_steps: Forwards of one measurement of the target.
        draft_steps: Of the draft.
        repeats: Measurements of each number.
        stream_bytes: Bytes that the bandwidth is measured on, many times any cache.
        product_size: Rows and columns of the matrix product whose rate is measured.
        chain_length: Draft tokens of a round beside torch.
    """

    target: TransformerConfig
    draft: TransformerConfig
    verify_sizes: dict[int, tuple[int, ...]]
    draft_widths: tuple[int, ...]
    compared_layers: int
    compared_sizes: tuple[int, ...]
    smollm2_sizes: tuple[int, ...]
    max_tree: tuple[int, int]
    prompt_length: int
    num_tokens: tuple[int, int]
    target_steps: int
    draft_steps: int
    repeats: int
    stream_bytes: int
    product_size: int
    chain_length: int


LLAMA_2_7B = TransformerConfig(32000, 4096, 11008, 32, 32, 32, 128, rms_norm_eps=1e-5, max_length=4096)
LLAMA_68M = TransformerConfig(32000, 768, 3072, 2, 12, 12, 64, max_length=2048)

SHAPES = {
    "full": Shapes(
        target=LLAMA_2_7B,
        draft=LLAMA_68M,
        verify_sizes={512: (1, 2, 4, 8, 16, 32, 64, 128, 256), 2048: (1, 512, 1024)},
        draft_widths=(1, 2, 4, 8, 16, 32, 64),
        compared_layers=8,
        compared_sizes=(1, 64),
        smollm2_sizes=(1, 8, 64),
        max_tree=(128, 16),
        prompt_length=128,
        num_tokens=(140, 364),
        target_steps=8,
        draft_steps=64,
        repeats=5,
        stream_bytes=4 << 30,
        product_size=8192,
        chain_length=5,
    ),
    "tiny": Shapes(
        target=TransformerConfig(61, 32, 40, 1, 4, 2, 8, max_length=512, initializer_range=0.3),
        draft=TransformerConfig(61, 16, 24, 1, 2, 2, 8, max_length=512, initializer_range=0.3),
        verify_sizes={64: (1, 4)},
        draft_widths=(1,),
        compared_layers=1,
        compared_sizes=(1,),
        smollm2_sizes=(),
        max_tree=(4, 1),
        prompt_length=8,
        num_tokens=(10, 48),
        target_steps=2,
        draft_steps=2,
        repeats=1,
        stream_bytes=1 << 20,
        product_size=64,
        chain_length=3,
    ),
}


@dataclasses.dataclass(frozen=True)
class Published:
    """An acceptance vector, by child rank.

    Attributes:
        name: How the tables call it.
        source: Where it comes from.
        acceptance: Probability that each child is the accepted one.
    """

    name: str
    source: str
    acceptance: tuple[float, ...]


# fmt: off
_LLAMA_3_ON_CNN = (
    0.7732, 0.1039, 0.0402, 0.0206, 0.0128, 0.0081, 0.0064, 0.0043, 0.0035, 0.0026, 0.0025, 0.0021, 0.0016, 0.0014,
    0.0010, 0.0010, 0.0010, 0.0007, 0.0007, 0.0006, 0.0007, 0.0006, 0.0004, 0.0004, 0.0005, 0.0006, 0.0004, 0.0003,
    0.0002, 0.0004, 0.0001,
)
# fmt: on

SEQUOIA_REPOSITORY = Published(
    "repository",
    "the first 6 of 32 entries of acceptance-rate-vector.pt in SEQUOIA's repository, which does not name its pair; "
    "with it (128, 7) expects 4.04 tokens a round, where SEQUOIA's table has 3.86 to 4.05 for 68M and 7B at T=0",
    (0.6342, 0.1079, 0.0570, 0.0225, 0.0195, 0.0150),
)
LLAMA_3 = Published(
    "Llama 3",
    "SEQUOIA (arXiv 2402.12374), appendix E: Llama3-8B for Llama3-70B-Instruct on CNN, another pair than the one timed",
    _LLAMA_3_ON_CNN,
)
VECTORS = SEQUOIA_REPOSITORY, LLAMA_3


@dataclasses.dataclass(frozen=True)
class Paper:
    """A row of SEQUOIA's table 1 for Llama-2-7B and JackFram-68M on one A100.

    Attributes:
        task: The data.
        temperature: 0 or 0.6.
        size: Nodes with the root.
        levels: Depth in edges plus 1.
        speedup: Over plain decoding in Hugging Face transformers.
        tokens: A round.
    """

    task: str
    temperature: float
    size: int
    levels: int
    speedup: float
    tokens: float


PAPER_PLAIN_MS, PAPER_DRAFT_MS = 24.2, 0.5
"""Milliseconds of a plain token of the 7B and of a draft step of the 68M on the paper's A100 (SEQUOIA, section 4.1)."""

PAPER = (
    Paper("C4", 0.0, 128, 10, 4.04, 5.08),
    Paper("OpenWebText", 0.0, 128, 7, 3.22, 3.86),
    Paper("CNN", 0.0, 128, 7, 3.41, 4.05),
    Paper("MT-Bench", 0.0, 128, 10, 4.03, 4.98),
    Paper("C4", 0.6, 128, 7, 3.18, 3.92),
    Paper("OpenWebText", 0.6, 128, 6, 2.71, 3.33),
    Paper("CNN", 0.6, 128, 6, 2.83, 3.45),
    Paper("MT-Bench", 0.6, 128, 7, 3.18, 3.96),
)

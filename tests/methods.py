"""Every method of a small model, by name: for what all of them must do."""

from collections.abc import Sequence

from jaxspec import decode, tree
from jaxspec.base import Model
from jaxspec.decode.state import Decoder

METHODS: Sequence[str] = ("plain", "chain", "tree", "topk", "adaedl", "pearl", "specbranch")


def of(method: str, target: Model, draft: Model | None = None) -> Decoder:
    """A decoder of the target and a draft of its kind, or another one."""
    draft = draft or target
    match method:
        case "plain":
            return decode.autoregressive(target)
        case "chain":
            return decode.speculative(target, draft, 2)
        case "tree":
            return decode.sequoia(target, draft, tree.k_ary(2, 2))
        case "topk":
            return decode.topk(target, draft, tree.k_ary(2, 2))
        case "adaedl":
            return decode.adaedl(target, draft, 3, threshold=0.5)
        case "pearl":
            return decode.pearl(target, draft, 2)
        case _:
            return decode.specbranch(target, draft, None, 3, 2, 0.4)

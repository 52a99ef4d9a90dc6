"""`Pair`: a target with its draft, what turns text into their tokens and back, and what was measured and fitted."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxspec import documents
from jaxspec.base import Model, Params
from jaxspec.networks import MLP
from jaxspec.pairs.heads import Head
from jaxspec.profiles import Profile


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A target with its draft, and what turns text into their tokens and back.

    Attributes:
        name: The built-in name, the folder's, or both models'.
        target: The model whose law every method keeps. With heads it gives the features that they read.
        draft: The model that proposes. Both have the tokenizer's vocabulary: rows that pad an embedding are cut off.
        params: Parameters by model name, `{"target": …, "draft": …}`; with heads `"hrad"` too, those of the first.
        tokenizer: A transformers tokenizer.
        profiles: What was measured of the pair, at different temperatures; empty where nothing was.
        heads: H-RAD's trained heads for different temperatures, all of one network; empty where there are none.
        stop_ids: Token ids that end a text.
        sources: Where target and draft came from.
        description: One line on the pair.
    """

    name: str
    target: Model
    draft: Model
    params: dict[str, Params] = dataclasses.field(repr=False)
    tokenizer: Any = dataclasses.field(repr=False)
    profiles: tuple[Profile, ...] = dataclasses.field(default=(), repr=False)
    heads: tuple[Head, ...] = dataclasses.field(default=(), repr=False)
    stop_ids: tuple[int, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    description: str = ""

    @property
    def profile(self) -> Profile | None:
        """The first of the profiles; None where nothing was measured."""
        return self.profiles[0] if self.profiles else None

    def profile_at(self, temperature: float) -> Profile | None:
        """The profile whose temperature is nearest; None where nothing was measured."""
        return min(self.profiles, key=lambda profile: abs(profile.temperature - temperature), default=None)

    @property
    def hrad(self) -> MLP | None:
        """H-RAD's network, as `decode.specbranch` takes it; None where there is no head."""
        return self.heads[0].network if self.heads else None

    def hrad_at(self, temperature: float) -> Head | None:
        """The head whose temperature is nearest, with network and parameters; None where there is none."""
        return min(self.heads, key=lambda head: abs(head.temperature - temperature), default=None)

    def params_at(self, temperature: float) -> dict[str, Params]:
        """`params`, with the head whose temperature is nearest."""
        head = self.hrad_at(temperature)
        return self.params if head is None else {**self.params, "hrad": head.params}

    def encode(self, prompt: str | Sequence[Mapping[str, Any]], *, raw: bool = False) -> list[int]:
        """Token ids of a prompt.

        Args:
            prompt: A text, or messages `{"role": …, "content": …}`; the assistant's, if it is the last, is continued.
            raw: Whether a text is taken as it is, instead of as a user's message in the chat template with the
                assistant's turn opened behind it. It begins with BOS where the tokenizer puts it by itself.

        Raises:
            ValueError: Messages with `raw`, or without it a tokenizer whose chat template is missing or fails.
        """
        if raw:
            if not isinstance(prompt, str):
                raise ValueError("raw=True takes a text: messages need the chat template.")
            return list(self.tokenizer(documents.unicode(prompt, "the prompt"))["input_ids"])
        if not self.tokenizer.chat_template:
            raise ValueError(f"The tokenizer of {self.name} has no chat template: give a text and raw=True (--raw).")
        if isinstance(prompt, str):
            documents.unicode(prompt, "the prompt")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
        is_begun = bool(messages) and messages[-1].get("role") == "assistant"
        turn = {"continue_final_message": is_begun, "add_generation_prompt": not is_begun}
        try:
            return list(self.tokenizer.apply_chat_template(messages, return_dict=False, **turn))
        except Exception as error:  # A template is a program of somebody else, and fails as it likes.
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(
                f"The chat template of {self.name} fails ({said[:300]}): give a text and raw=True (--raw), or messages "
                "that it takes."
            ) from error

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens; negative ids (padding of a `Generation`) are left out."""
        kept = [token for token in map(int, token_ids) if token >= 0]
        return self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)

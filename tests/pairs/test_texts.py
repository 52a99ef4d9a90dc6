"""Text that grows: a character is shown when it is whole, and once; nothing of a stop string or behind it is."""

import random

import pytest

from jaxspec.pairs.texts import TextStream, word_ids


def as_bytes(tokens):
    return bytes(tokens).decode("utf-8", "replace")


def feed(data: bytes, *, ends: bool = True) -> list[str]:
    shown = TextStream(as_bytes)
    return [shown.feed([byte]) for byte in data] + ([shown.finish()] if ends else [])


def test_a_character_is_shown_when_it_is_whole():
    assert feed("a€🙂".encode()) == ["a", "", "", "€", "", "", "", "🙂", ""]


def test_broken_bytes_are_shown_when_nothing_can_complete_them():
    assert feed(b"a\xe2\x82") == ["a", "", "", "\ufffd"]
    assert feed(b"\xe2b") == ["", "\ufffdb", ""]
    assert "".join(feed(bytes(range(120, 256)))) == bytes(range(120, 256)).decode("utf-8", "replace")


def test_text_that_is_decoded_anew_is_not_shown_twice():
    # Byte-fallback decoders turn a whole run of byte tokens into replacement characters until it is complete.
    texts = iter(["€", "\ufffd\ufffd\ufffd\ufffd", "€é", "€é"])
    shown = TextStream(lambda tokens: next(texts))
    assert [shown.feed([1]), shown.feed([2]), shown.feed([3]), shown.finish()] == ["€", "", "é", ""]


def test_nothing_is_lost_behind_text_that_a_decoder_changes():
    # A decoder that cleans up spaces takes back one that was shown.
    texts = iter(["so ", "so.", "so. Yes", "so. Yes"])
    shown = TextStream(lambda tokens: next(texts))
    assert [shown.feed([1]), shown.feed([2]), shown.feed([3]), shown.finish()] == ["so ", ".", " Yes", ""]


@pytest.mark.parametrize("size", [1, 2, 5, 99])
@pytest.mark.parametrize(
    ("text", "stops", "shown", "found"),
    [
        ("one two three", ["two"], "one ", "two"),
        ("aab", ["aab"], "", "aab"),
        ("xaaab.", ["aab"], "xa", "aab"),
        ("ababac!", ["abac"], "ab", "abac"),
        ("one tw", ["two"], "one tw", None),
        ("a\n\nb", ["\n\n", "b"], "a", "\n\n"),
        ("stopped", ["stopped", "stop"], "", "stop"),
        ("€uro 🙂 end", ["🙂"], "€uro ", "🙂"),
        ("nothing", ["x", "yy"], "nothing", None),
    ],
)
def test_the_text_ends_where_a_stop_string_begins(text, stops, shown, found, size):
    """In one block, across blocks of several tokens, and token by token; the token that completes it is the last."""
    data = text.encode()
    stream = TextStream(as_bytes, stops)
    pieces = [stream.feed(data[start : start + size]) for start in range(0, len(data), size)]
    pieces.append(stream.finish())
    assert ("".join(pieces), stream.text, stream.stop) == (shown, shown, found)
    wanted = data if found is None else data[: data.index(found.encode()) + len(found.encode())]
    assert bytes(stream.tokens) == wanted
    assert stream.feed(b"more") == ("" if found else "more")


def test_what_is_shown_never_has_to_be_taken_back():
    """Random texts of few letters: at every token what is shown is the text's beginning, without a stop string."""
    random_numbers = random.Random(0)
    for _ in range(300):
        text = "".join(random_numbers.choice("ab€") for _ in range(12))
        stops = ["".join(random_numbers.choice("ab€") for _ in range(random_numbers.randint(1, 4))) for _ in range(2)]
        stream = TextStream(as_bytes, stops)
        for byte in text.encode():
            stream.feed([byte])
            assert text.startswith(stream.text)
            assert not any(stop in stream.text for stop in stops)
        stream.finish()
        found = [text.index(stop) + len(stop) for stop in stops if stop in text]
        if not found:
            assert stream.text == text
        else:
            first = min(found)
            assert stream.text == text[: min(text.index(stop) for stop in stops if stop in text[:first])]


@pytest.mark.parametrize("stops", ["text", [""], [1], [b"a"]])
def test_stop_strings_that_cannot_be(stops):
    with pytest.raises(ValueError, match="each of at least one character"):
        TextStream(as_bytes, stops)


def test_a_word_is_itself_and_itself_behind_a_space():
    def tokenizer(text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [*text.encode()]}

    assert word_ids(tokenizer, "hé") == [[104, 195, 169], [32, 104, 195, 169]]
    with pytest.raises(ValueError, match="'' has no tokens"):
        word_ids(tokenizer, "")
    assert word_ids(lambda text, **_: {"input_ids": [*text.strip().encode()]}, "a") == [[97]]

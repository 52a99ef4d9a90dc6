import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxspec.catalogue import prompts
from jaxspec.catalogue.prompts import MT_BENCH, Prompt


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_each_kind_of_prompt(tmp_path):
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    path = write(
        tmp_path / "prompts.jsonl",
        {"prompt": "one", "category": "qa", "id": 7},
        "",
        {"messages": chat, "category": "roleplay", "id": "a"},
        "   ",
        {"turns": ["first", "second"], "category": "math_reasoning"},
    )
    assert prompts.read(path) == [
        Prompt("one", "qa", "7"),
        Prompt(tuple(chat), MT_BENCH, "a"),
        Prompt("first", "math_reasoning", ""),
    ]


@pytest.mark.parametrize(
    "category", ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
def test_mt_bench_is_one_task(tmp_path, category):
    assert prompts.read(write(tmp_path / "p", {"prompt": "x", "category": category}))[0].task == "mt_bench"


@pytest.mark.parametrize("category", ["translation", "summarization", "qa", "rag", "math_reasoning", None])
def test_other_categories_stay(tmp_path, category):
    assert prompts.read(write(tmp_path / "p", {"prompt": "x", "category": category}))[0].task == (category or "")


def test_limit_reads_no_further(tmp_path):
    path = write(tmp_path / "p", {"prompt": "one"}, {"prompt": "two"}, "not JSON")
    assert [prompt.content for prompt in prompts.read(path, 2)] == ["one", "two"]
    assert len(prompts.read(write(path, {"prompt": "one"}), 5)) == 1


def test_line_separators_in_a_string_do_not_end_its_line(tmp_path):
    path = tmp_path / "p"
    path.write_text(json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert prompts.read(path)[0].content == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nonsense", "is not JSON"),
        ("[1]", "is \\[1\\], but one object a line"),
        ('{"words": "x"}', 'has the keys \\["words"\\], but "prompt" \\(a string\\)'),
        ('{"text": 3}', '"text" is 3'),
        ('{"question": null}', '"question" is null'),
        ('{"conversations": [{"from": "bing", "value": "x"}]}', 'message 0: "from" is "bing"'),
        ('{"conversations": [{"from": "human"}]}', "message 0 must be"),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', "message 0: a part of its content is"),
        ('{"prompt": "\\ud83d"}', "lone surrogate"),
        ("[" * 100_000, "more than 100 deep"),
        ('{"prompt": 3}', '"prompt" is 3'),
        ('{"prompt": ""}', '"prompt" is ""'),
        ('{"turns": []}', '"turns" is \\[\\]'),
        ('{"turns": [5]}', 'the first of "turns" is 5'),
        ('{"messages": "hello"}', '"messages" is "hello"'),
        ('{"messages": [{"role": "user"}]}', "message 0 must be"),
        ('{"prompt": "x", "category": 3}', '"category" is 3'),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, message):
    path = write(tmp_path / "prompts.jsonl", {"prompt": "fine"}, "", line)
    with pytest.raises(ValueError, match=message) as error:
        prompts.read(path)
    assert f"{path}, line 3" in str(error.value)


CHAT = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "well"})


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        ({"question": "why"}, "why"),
        ({"text": "why"}, "why"),
        ({"messages": CHAT}, CHAT),
        (CHAT, CHAT),
        ({"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "well"}]}, CHAT),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], None),
    ],
)
@pytest.mark.parametrize("is_list", [False, True])
def test_the_forms_that_people_have(tmp_path, entry, content, is_list):
    expected = Prompt(({"role": "user", "content": "ab"},) if content is None else content)
    path = write(tmp_path / "p", *([json.dumps([entry, entry], indent=1)] if is_list else [entry, entry]))
    assert prompts.read(path) == [expected] * 2


def test_a_file_that_is_one_chat_is_one_prompt(tmp_path):
    assert prompts.read(write(tmp_path / "p", json.dumps(CHAT, indent=2))) == [Prompt(CHAT)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, encoding):
    (tmp_path / "p").write_text('{"prompt": "é"}\r\n{"prompt": "ü"}', encoding=encoding)
    assert [one.content for one in prompts.read(tmp_path / "p")] == ["é", "ü"]


def test_a_damaged_list_is_named_where_it_is_damaged(tmp_path):
    with pytest.raises(ValueError, match=r"p is not JSON: .* line 3"):
        prompts.read(write(tmp_path / "p", "[", '{"prompt": "x"},', "{nonsense", "]"))
    with pytest.raises(ValueError, match=r"p, entry 2 is 3"):
        prompts.read(write(tmp_path / "p", '[{"prompt": "x"}, 3]'))


def test_files_without_prompts(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.jsonl can't be read: No such file"):
        prompts.read(tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match="can't be read"):
        prompts.read(tmp_path)
    with pytest.raises(ValueError, match="is empty: one JSON object a line"):
        prompts.read(write(tmp_path / "empty.jsonl", "", "  "))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not text in UTF-16"):
        prompts.read(tmp_path / "binary")


class BytePair:
    """As much of a `Pair` as `encode` needs: a byte is a token, and a template of 4 tokens stands around the text."""

    def __init__(self):
        vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        backend = Tokenizer(models.BPE(vocab, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)

    def encode(self, content):
        texts = [content] if isinstance(content, str) else [message["content"] for message in content]
        return list(self.tokenizer("<<" + "|".join(texts) + ">>")["input_ids"])

    def text(self, tokens):
        return self.tokenizer.decode(tokens)


def byte_pair() -> Any:
    """One in a `Pair`'s place."""
    return BytePair()


def test_a_prompt_is_cut_in_its_text():
    pair = byte_pair()
    assert pair.text(prompts.encode(pair, Prompt("abcdefgh"), 12)) == "<<abcdefgh>>"
    assert pair.text(prompts.encode(pair, Prompt("abcdefgh"), 9)) == "<<abcde>>"
    assert pair.text(prompts.encode(pair, Prompt("abcdefgh"), 4)) == "<<>>"


def test_messages_are_cut_in_the_last_one():
    pair = byte_pair()
    chat = ({"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"})
    assert pair.text(prompts.encode(pair, Prompt(chat), 14)) == "<<be kind|he>>"
    assert chat[1]["content"] == "hello"


@pytest.mark.parametrize("limit", range(4, 15))
def test_no_character_is_cut_in_two(limit):
    pair = byte_pair()
    tokens = prompts.encode(pair, Prompt("a€🙂é"), limit)
    text = pair.text(tokens)[2:-2]
    assert len(tokens) <= limit
    assert "a€🙂é".startswith(text)
    assert text == "a€🙂é" or len(("<<" + "a€🙂é"[: len(text) + 1] + ">>").encode()) > limit


def test_a_template_that_is_too_long_is_named():
    with pytest.raises(ValueError, match=r"'x7' can't be cut to 3 tokens: .* alone has 4"):
        prompts.encode(byte_pair(), Prompt("abc", id="x7"), 3)

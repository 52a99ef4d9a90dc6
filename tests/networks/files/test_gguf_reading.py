"""GGUF files as they are: read as the gguf package reads them, every type dequantised, every lie refused."""

import struct

import gguf
import numpy as np
import pytest

from jaxspec.networks import listed_stop_ids, load_tokenizer
from jaxspec.networks.files import gguf_reading

KINDS = sorted([*gguf.quants._type_traits, *(gguf.GGMLQuantizationType[name] for name in ("F32", "F16"))])


def write(file, fields=(), tensors=(), architecture="llama"):
    """Writes a file with fields (name, value) and tensors (name, array, type)."""
    writer = gguf.GGUFWriter(file, architecture)
    for name, value in fields:
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            kind = {str: gguf.GGUFValueType.STRING, bool: gguf.GGUFValueType.BOOL, float: gguf.GGUFValueType.FLOAT32}
            writer.add_key_value(name, value, kind.get(type(value), gguf.GGUFValueType.UINT32))
    for name, array, kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_file_is_what_the_gguf_package_reads(tmp_path):
    fields = [("a", 3), ("b", "é"), ("c", True), ("d", 0.5), ("e", [1, -2]), ("f", ["x", ""]), ("g", [0.25])]
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = gguf_reading.read(write(tmp_path / "a.gguf", fields, [("w", weight, None), ("v", weight[0], None)]))
    theirs = gguf.GGUFReader(tmp_path / "a.gguf")
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert found.fields == expected
    assert list(found.fields)[1:] == [name for name, _ in fields]
    for tensor in theirs.tensors:
        ours = found.tensors[tensor.name]
        assert (list(reversed(ours.shape)), ours.start) == (tensor.shape.tolist(), tensor.data_offset)
        np.testing.assert_array_equal(gguf_reading.values(tmp_path / "a.gguf", tensor.name, ours), tensor.data)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_type_that_gguf_dequantises_is_read(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    num_bytes = 3 * 256 // block * size
    data = np.random.default_rng(0).integers(0, 60, num_bytes, np.uint8).reshape(3, -1)  # no number is infinite
    file = write(tmp_path / "a.gguf", (), [("w", data, kind)])
    tensor = gguf_reading.read(file).tensors["w"]
    assert tensor.shape == (3, 256)
    values = gguf_reading.values(file, "w", tensor)
    np.testing.assert_array_equal(values, gguf.quants.dequantize(data, kind).reshape(3, 256))


def test_a_type_that_is_not_dequantised_is_named(tmp_path):
    file = write(tmp_path / "a.gguf", (), [("w", np.zeros((2, 3), np.int32), None)])
    with pytest.raises(ValueError, match="w is of type I32, which the gguf package does not dequantise"):
        gguf_reading.values(file, "w", gguf_reading.read(file).tensors["w"])


def test_the_ends_of_turns_and_messages_are_listed(tmp_path):
    fields = [("tokenizer.ggml.tokens", ["a", "b", "c", "d"])]
    ends = [(f"tokenizer.ggml.{name}_token_id", index) for name, index in (("eos", 2), ("eot", 3), ("eom", 2))]
    assert listed_stop_ids(write(tmp_path / "a.gguf", fields + ends)) == (2, 3)
    assert listed_stop_ids(write(tmp_path / "b.gguf", fields)) == ()
    with pytest.raises(ValueError, match="eot_token_id is 4, but a token's id is needed: 0 to 3"):
        listed_stop_ids(write(tmp_path / "c.gguf", [*fields, ("tokenizer.ggml.eot_token_id", 4)]))


def test_the_architecture_is_looked_at_before_the_tokenizer_is_built(tmp_path, monkeypatch):
    from jaxspec.networks.files import gguf_file

    monkeypatch.setattr(gguf_file, "_tokenizer", lambda *_: pytest.fail("built"))
    file = write(tmp_path / "a.gguf", [("tokenizer.ggml.tokens", ["a"])], architecture="mamba")
    with pytest.raises(ValueError, match=r"general.architecture is 'mamba', which is not implemented"):
        load_tokenizer(file)


def test_a_part_of_a_model_says_so(tmp_path):
    file = write(tmp_path / "a.gguf", [("split.count", 2), ("tokenizer.ggml.tokens", ["a"])])
    with pytest.raises(ValueError, match=r"is one of 2 parts.*--merge"):
        load_tokenizer(file)


@pytest.mark.parametrize(
    ("place", "kind", "value", "named"),
    [
        (4, "I", 9, "is GGUF of version 9"),
        (8, "Q", 2**60, "axes; 1 to 4 are read"),
        (16, "Q", 2**60, "ends within its head"),
        (24, "Q", 2**60, "ends within its head"),
        (0, "I", 0, "is no GGUF file"),
    ],
)
def test_counts_that_the_file_does_not_hold_are_refused(tmp_path, place, kind, value, named):
    file = write(tmp_path / "a.gguf", [("a", 3)], [("w", np.zeros((2, 4), np.float32), None)])
    data = bytearray(file.read_bytes())
    struct.pack_into(f"<{kind}", data, place, value)
    (tmp_path / "b.gguf").write_bytes(data)
    with pytest.raises(ValueError, match=named):
        gguf_reading.read(tmp_path / "b.gguf")


def test_a_file_that_was_cut_off_is_refused_wherever_that_was(tmp_path):
    data = write(tmp_path / "a.gguf", [("a", ["x"])], [("w", np.zeros((2, 4), np.float32), None)]).read_bytes()
    for size in range(len(data)):
        (tmp_path / "b.gguf").write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"b\.gguf"):
            gguf_reading.read(tmp_path / "b.gguf")

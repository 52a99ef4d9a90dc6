"""Profiles: times between measured points, the JSON round trip, and what is refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxspec import profiles, records
from jaxspec.profiles import Profile

FULL = Profile(
    acceptance=[[0.6, 0.1 + 0.2], [1 / 3, 0.0]],  # type: ignore[arg-type]
    verify_ms={16: 31.0, 1: 10.1, 4: 12.0},
    draft_ms={1: 1.25, 4: 2},
    rejection=np.array([0.1, 0.5]),  # type: ignore[arg-type]
    standard_errors=((0.01, 0.02), (0.03, 0.0)),
    counts=(1000, 600),
    temperature=0.6,
    draft_temperature=1.0,
    target="some/target",
    draft="some/draft",
    protocol={"num_prompts": 200, "tree": (-1, 0, 0, 1, 1)},
    machine="a machine — with ünïcode",
    versions={"jax": "0.10.2"},
    date="2025-11-29",
    overhead_ms=0.3,
    calibration=(((0.5, 0.2), (0.5, 0.9)), ((0.25, 0.4), (0.75, 1.0))),
)
SMALL = {"acceptance": (0.5, 0.2), "verify_ms": {1: 10.0}, "draft_ms": {1: 1.0}}


@pytest.mark.parametrize("profile", [FULL, Profile(**SMALL)])
def test_a_saved_profile_comes_back_equal(profile, tmp_path):
    profile.save(tmp_path / "profile.json")
    loaded = Profile.load(tmp_path / "profile.json")
    assert loaded == profile
    assert repr(loaded) == repr(profile)  # types and order as well
    loaded.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_text() == (tmp_path / "profile.json").read_text()
    assert dataclasses.replace(profile, overhead_ms=7.0) != profile


def test_the_file_is_readable_json_with_a_version(tmp_path):
    FULL.save(tmp_path / "profile.json")
    text = (tmp_path / "profile.json").read_text()
    entries = json.loads(text)
    assert entries["format"] == profiles.FORMAT
    assert entries["verify_ms"] == {"1": 10.1, "4": 12.0, "16": 31.0}
    assert len(text.splitlines()) == len(entries) + 2
    assert set(entries) == {"format", *(field.name for field in dataclasses.fields(Profile))}


def test_values_are_stored_as_plain_python():
    profile = Profile(np.array([0.5, 0.2]), {np.int64(1): np.float32(2)}, {1: 1}, counts=np.int32(3))  # type: ignore
    assert profile.acceptance == (0.5, 0.2)
    assert profile == Profile((0.5, 0.2), {1: 2.0}, {1: 1.0}, counts=3)
    assert list(FULL.verify_ms) == [1, 4, 16]
    assert FULL.acceptance == ((0.6, 0.1 + 0.2), (1 / 3, 0.0))
    assert FULL.rejection == (0.1, 0.5)
    json.dumps(dataclasses.asdict(profile))


def test_times_between_and_beyond_measured_points():
    profile = Profile((0.5,), {1: 10.0, 3: 14.0, 5: 20.0}, {2: 1.5})
    assert [profile.verify_time(n) for n in (1, 2, 3, 4, 5)] == [10, 12, 14, 17, 20]
    assert profile.verify_time(9) == pytest.approx(20 + 4 * 3)
    assert [profile.draft_time(width) for width in (1, 2, 100)] == [1.5, 1.5, 1.5]
    falling = Profile((0.5,), {1: 10.0, 4: 8.0}, {4: 2.0, 8: 3.0})
    assert falling.verify_time(2) == pytest.approx(10 - 2 / 3)
    assert falling.verify_time(100) == 8
    assert falling.draft_time(1) == 2
    with pytest.raises(ValueError, match="0 tokens"):
        falling.draft_time(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance": ()}, r"shape \(0,\)"),
        ({"acceptance": 0.5}, r"shape \(\)"),
        ({"acceptance": (0.5, -0.1)}, r"acceptance\[1\] is -0\.1"),
        ({"acceptance": ((0.5, 0.1), (0.5, float("nan")))}, r"acceptance\[1, 1\] is nan"),
        ({"acceptance": ((0.5, 0.1), (0.5,))}, "without gaps"),
        ({"acceptance": ("a",)}, "without gaps"),
        ({"acceptance": (0.6, 0.41)}, "acceptance sums to 1.01"),
        ({"acceptance": ((0.6, 0.4), (0.6, 0.5))}, "row 1 of acceptance sums to 1.1"),
        ({"verify_ms": {}}, "verify_ms must be a non-empty dict"),
        ({"verify_ms": [10.0]}, "verify_ms must be a non-empty dict"),
        ({"verify_ms": {2: 10.0}}, r"verify_ms has no entry for n=1, only for \[2\]"),
        ({"verify_ms": {1: 0.0}}, r"verify_ms\[1\] is 0"),
        ({"verify_ms": {1: 10.0, 2: -1.0}}, r"verify_ms\[2\] is -1"),
        ({"verify_ms": {1: 10.0, "2": 11.0}}, "verify_ms needs integers as keys"),
        ({"draft_ms": {0: 1.0}}, r"draft_ms\[0\]"),
        ({"draft_ms": {1: float("inf")}}, r"draft_ms\[1\] is inf"),
        ({"rejection": 1.2}, "rejection is 1.2"),
        ({"rejection": (0.1, 0.2)}, r"rejection has shape \(2,\)"),
        ({"standard_errors": (0.1,)}, r"standard_errors has shape \(1,\)"),
        ({"standard_errors": (0.1, None)}, "standard_errors must be numbers"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"overhead_ms": float("nan")}, "overhead_ms is nan"),
        ({"calibration": ((0.5, 0.2),)}, r"calibration has shape \(1, 2\)"),
        ({"calibration": (((1.0, 0.2),), ((0.8, 0.5),))}, r"shares of calibration\[1\] sum to 0.8"),
        ({"calibration": (((1.0, 1.2),), ((1.0, 0.5),))}, "calibration is"),
        ({"protocol": {"file": object()}}, "protocol must be a dict of JSON values"),
    ],
)
def test_bad_profiles_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Profile(**(SMALL | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2.*reads format 1"),
        ({"format": None}, "format None"),
        ({"speed": 1}, r"unknown keys \['speed'\]"),
        ({"verify_ms": {"one": 10.0}}, "'one'"),
        ({"draft_ms": [1.0]}, "draft_ms must be an object"),
        ({"verify_ms": {"2": 10.0}}, "n=1"),
    ],
)
def test_bad_files_are_refused(change, message, tmp_path):
    path = tmp_path / "profile.json"
    FULL.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        Profile.load(path)


def test_a_file_must_have_what_has_no_default(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text('{"format": 1, "acceptance": [0.5, 0.2], "verify_ms": {"1": 10}, "draft_ms": {"1": 1}}')
    assert Profile.load(path) == Profile(**SMALL)
    path.write_text('{"format": 1, "acceptance": [0.5]}')
    with pytest.raises(ValueError, match=r"missing keys \['verify_ms', 'draft_ms'\]"):
        Profile.load(path)
    for text in ("[1]", "nonsense", ""):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a profile"):
            Profile.load(path)


def test_machine_and_versions():
    description = records.machine_description()
    assert "cores" in description
    assert jax.default_backend() in description
    assert "\n" not in description
    versions = records.library_versions()
    assert versions["numpy"] == np.__version__
    assert {"python", "jax", "jaxlib"} <= set(versions)

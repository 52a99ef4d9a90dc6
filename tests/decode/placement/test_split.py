"""The split placement. What needs two devices is in `two_devices.py`, which runs in a process that has them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import checks
import jax
import pytest
import toys

from jaxspec import decode, tree
from jaxspec.decode.placement.split import generate_split


def test_on_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    file = Path(__file__).parents[2] / "two_devices.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(file)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_refuses_a_decoder_whose_halves_take_turns():
    pair = toys.pair("ctx")
    device = jax.devices()[0]
    unsplit: Any = decode.sequoia(pair.target, pair.draft, tree.chain(2))  # of another type, as the error says
    with pytest.raises(ValueError, match=r"TreeDecoder can't be split.*decode\.generate"):
        generate_split(
            unsplit,
            pair.params,
            checks.PROMPTS,
            target_device=device,
            draft_device=device,
            key=checks.KEY,
            max_new_tokens=4,
        )

"""A pair on this machine: acceptance, the draft's confidence, times of steps and rounds, all as a profile.

Runs `decode` and plans with `plan`; studies and training import it.
"""

from jaxspec.measure.profiling import (
    CALIBRATION_PROMPTS,
    DRAFT_WIDTHS,
    NUM_PROMPTS,
    PROMPT_TOKENS,
    VERIFY_SIZES,
    overhead,
    profile,
)
from jaxspec.measure.ranks import NEW_TOKENS, Acceptance, acceptance

__all__ = [
    "CALIBRATION_PROMPTS",
    "DRAFT_WIDTHS",
    "NEW_TOKENS",
    "NUM_PROMPTS",
    "PROMPT_TOKENS",
    "VERIFY_SIZES",
    "Acceptance",
    "acceptance",
    "overhead",
    "profile",
]

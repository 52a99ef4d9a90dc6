"""The real pair, for tests that need it: fetched once, skipped where it can't be had.

Use: `from real import real_pair  # noqa: F401`, and `real_pair` as an argument of the test.
"""

import pytest

from jaxspec import pairs


@pytest.fixture(scope="session")
def real_pair() -> pairs.Pair:
    """`pairs.load()` in float32."""
    try:
        pairs.fetch()
    except pairs.Unavailable as error:
        pytest.skip(str(error))
    return pairs.load()

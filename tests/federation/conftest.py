"""What a federation changes in its process is put back after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.federation.together import as_before


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    put_back = as_before()
    yield
    put_back()

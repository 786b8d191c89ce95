"""The record of the experiment that a file of tests is named after."""

from __future__ import annotations

import pytest
import small

from normbook.lab.record import Record


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    name = request.module.__name__.removeprefix("test_")
    return small.record("batch_4" if name == "batch_size" else name)


@pytest.fixture
def live(record: Record) -> Record:
    return record

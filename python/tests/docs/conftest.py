# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A reader who follows a page of the documentation in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.doc_runner import Reader
from tvm_distir.support.plugins import registry


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """The reader; the folder is that of the test."""
    return Reader(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def no_registration_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page or an example registers is known in its test alone."""
    monkeypatch.setattr(registry, "_registrations", {})

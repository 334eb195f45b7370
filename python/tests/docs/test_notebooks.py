# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The page on notebooks does what it says, and the notebooks of the examples run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_true(reader: Reader) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    assert reader.read(ROOT / "docs/notebooks.md") >= 3

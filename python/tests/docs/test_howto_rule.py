# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The page on sharding rules, followed as it is written, by a package of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvm_distir.core.ops import registry

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader


PAGE = Path(__file__).resolve().parents[3] / "docs/howto/rule.md"


def test_the_page_is_true(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    registry.load_entry_points.cache_clear()
    try:
        assert reader.read(PAGE) == 5
    finally:
        registry.load_entry_points.cache_clear()
        registry._generation += 1

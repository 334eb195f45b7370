# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The how-tos do what they say: every block is run as written, in an empty folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader

HOWTO = Path(__file__).resolve().parents[3] / "docs/howto"


@pytest.mark.parametrize(
    "name",
    [
        "plan", "optimizer", "pass", "profile", "schedule", "strategy", "system", "collective",
        "engine", "executor", "frontend", "report_section",
    ],
)  # fmt: skip
def test_a_howto_is_true(reader: Reader, name: str) -> None:
    assert reader.read(HOWTO / f"{name}.md") >= 2

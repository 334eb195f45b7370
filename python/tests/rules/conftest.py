# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of this folder importable by its tests, and prints what was proved."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter):
    """Print how many rules were executed, when the tests of this folder ran."""
    harness = sys.modules.get("rule_harness")
    if harness is not None and harness.PROVED.failures:
        terminalreporter.write_sep("-", "sharding rules")
        terminalreporter.write_line(harness.PROVED.summary())

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every stage takes work in proportion to the layers; ``scripts/checks/growth.py`` times 256."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "checks" / "growth.py"
SMALL, LARGE, LEAST_CALLS = 4, 12, 7_000


def test_calls_grow_as_the_layers_do() -> None:
    spec = importlib.util.spec_from_file_location("growth", SCRIPT)
    assert spec is not None and spec.loader is not None
    growth = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(growth)
    growth.seconds(2)
    small, large = growth.calls(SMALL), growth.calls(LARGE)
    powers = dict(growth.powers(small, large, LARGE / SMALL, LEAST_CALLS))
    assert {"zoo", "fsdp plan", "fsdp propagate", "tp regather", "pp export"} <= set(powers)
    assert {name: power for name, power in powers.items() if power > growth.LIMIT} == {}

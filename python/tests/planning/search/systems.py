# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems that the tests of search share."""

from __future__ import annotations

import json
from pathlib import Path

import tvm_distir as td
from tests.plain_systems import PLAIN_A100

A100 = td.System.load(PLAIN_A100)


def _quick() -> td.System:
    """An A100 without latencies, on which small models are worth distributing."""
    data = json.loads(Path(PLAIN_A100).read_text())
    data["name"] = "quick"
    data["device"]["launch_floor_us"] = 1e-6
    for net in ("intra_node", "inter_node"):
        data[net]["latency_us"] = data[net]["setup_us"] = 0.0
    return td.System.from_dict(data)


QUICK = _quick()

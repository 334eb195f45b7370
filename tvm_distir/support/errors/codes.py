# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the error codes with a line each; a code never changes its meaning."""

from __future__ import annotations

import json
from pathlib import Path

TABLE = Path(__file__).with_name("codes.json")
"""The codes by ranges, under the title of each range."""
CODES: dict[str, str] = {
    code: meaning
    for codes in json.loads(TABLE.read_text(encoding="utf-8")).values()
    for code, meaning in codes.items()
}

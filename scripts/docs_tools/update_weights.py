#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the lines of code of each folder to ``docs/dev/weights.md``.

    .venv/bin/python scripts/docs_tools/update_weights.py           # rewrite the table
    .venv/bin/python scripts/docs_tools/update_weights.py --check   # exit 1: out of date

A test of the repository fails when a folder outgrows its line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from slots import rewrite_pages
from tests.repo.code_lines import END, START, count_by_folder, table

ROOT = Path(__file__).resolve().parents[2]

_TABLE = re.compile(f"{START}.*?{END}", re.DOTALL)


def with_counts(page: str) -> str:
    """Return the page with the table of today's counts."""
    counts = count_by_folder(ROOT / "tvm_distir")
    rows = table({**counts, "total": sum(counts.values())}).replace("`total`", "total")
    head = "| folder | lines of code |\n|---|---:|\n"
    return _TABLE.sub(lambda _: f"{START}\n{head}{rows}{END}", page)


if __name__ == "__main__":
    sys.exit(rewrite_pages(__doc__ or "", ROOT, ["docs/dev/weights.md"], with_counts))

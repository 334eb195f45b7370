# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run several reproducers in this process: ``python together.py NAME...``.

What each prints stands behind a line with its name.
"""

import importlib
import sys

from reporting import report

MARK = "== "


def main() -> None:
    """Run the reproducers that the arguments name."""
    for name in sys.argv[1:]:
        print(MARK + name, flush=True)
        report(importlib.import_module(name).reproduce)


if __name__ == "__main__":
    main()

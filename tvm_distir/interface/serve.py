# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_distir.serve`` is the same as ``tvm-distir serve``."""

from __future__ import annotations

import sys

from tvm_distir.interface.command.app import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))

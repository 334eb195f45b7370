# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the names of the IR levels without importing TVM."""

from __future__ import annotations

LEVELS = {1: "global", 2: "annotated", 3: "distributed", 4: "legalized", 5: "local"}

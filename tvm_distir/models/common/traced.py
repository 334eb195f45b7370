# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the attributes of modules that were made of traced ranks."""

from __future__ import annotations

TRACE_ATTR = "dist.trace"
"""Of a module: the names of all inputs and outputs in order, and inputs of integers."""

LINES_ATTR = "dist.lines"
"""Of a function: the line of code and the path of the module of each value, by its name."""

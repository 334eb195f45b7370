# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules to the hierarchical ``Program`` that the simulator reads."""

from __future__ import annotations

from .exporter import export
from .program import SCHEMA_VERSION, Entry, Function, Mesh, Op, Program, Value

__all__ = ["SCHEMA_VERSION", "Entry", "Function", "Mesh", "Op", "Program", "Value", "export"]

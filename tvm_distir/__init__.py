# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute, lower, verify and simulate Relax modules on the stock ``apache-tvm`` wheel."""

from __future__ import annotations

from .errors.tree import register_with_ffi as _register_errors
from .ir import device_mesh, ops as _ops

_register_errors()
_ops.register()

__version__ = "0.1.0"

__all__ = ["device_mesh"]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute, lower, verify and simulate Relax modules on the stock ``apache-tvm`` wheel."""

from __future__ import annotations

from ._versions import check_versions as _check_versions

_check_versions()

from .errors.tree import register_with_ffi as _register_errors  # noqa: E402
from .ir import device_mesh, ops as _ops  # noqa: E402
from .rules.inference import register_inference as _register_inference  # noqa: E402

_register_errors()
_ops.register()
_register_inference()

__version__ = "0.1.0"

__all__ = ["device_mesh"]

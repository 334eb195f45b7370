# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compiles ops to kernels that propagate NaN and keep indices inside of buffers."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The native library: its loader, a wrapper per kernel, and each kernel's reference in Python."""

from __future__ import annotations

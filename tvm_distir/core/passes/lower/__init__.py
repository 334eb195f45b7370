# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower a module to the per-device program on local tensors (level 4 to level 5)."""

from __future__ import annotations

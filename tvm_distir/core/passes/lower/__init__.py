# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From level 4 to level 5: each device's own program on local tensors."""

from __future__ import annotations

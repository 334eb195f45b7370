# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a collective means: its call decoded, the tiles that move, the result, in NumPy."""

from __future__ import annotations

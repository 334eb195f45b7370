# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the names of the axes of a refined mesh, which are parts of the axes of a mesh of Shardy.

Shardy writes ``"x":(2)4`` for a part of the axis ``x``, of size 4, behind a part of size 2; the
refined mesh has an axis of the name ``x:(2)4``.
"""

from __future__ import annotations

import re


def piece(axis: str) -> tuple[str, int]:
    """Return the name of the axis that an axis of a refined mesh is a part of, and its start."""
    match = re.fullmatch(r"(.*):\((\d+)\)\d+", axis, re.DOTALL)
    return (match[1], int(match[2])) if match else (axis, 1)

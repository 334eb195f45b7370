# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the order of the mesh axes that shard a dim together (level 3)."""

from __future__ import annotations

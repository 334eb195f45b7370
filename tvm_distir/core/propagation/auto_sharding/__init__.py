# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The cheapest forms of all values by the times of a system, along all axes of a mesh at once."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves sharding assignments of minimum cost along a mesh axis."""

from __future__ import annotations

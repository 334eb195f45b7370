# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves sharding assignments of minimum cost along all axes of a mesh at once."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Solves sharding assignments of minimum cost along some axes of a mesh."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents Relax functions as values and nodes, and the meshes on which they are placed."""

from __future__ import annotations

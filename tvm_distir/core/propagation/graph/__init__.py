# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Relax functions as values and nodes, and the meshes that each lies on."""

from __future__ import annotations

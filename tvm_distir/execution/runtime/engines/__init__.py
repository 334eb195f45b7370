# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines, an engine per folder, and run."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Differentiate Relax functions in reverse mode."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reduce, merge and overlap collectives with passes at level 4, then at level 5."""

from __future__ import annotations

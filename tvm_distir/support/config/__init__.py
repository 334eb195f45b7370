# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write checked JSON files, in which each value knows its path."""

from __future__ import annotations

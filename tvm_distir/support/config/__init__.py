# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read dataclasses from JSON files, with the place of each fault, and write files."""

from __future__ import annotations

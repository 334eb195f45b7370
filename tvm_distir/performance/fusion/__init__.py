# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Group ops into the kernels that a backend launches, by profiles that are data."""

from __future__ import annotations

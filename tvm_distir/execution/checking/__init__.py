# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check programs that others distributed against the program of a single device."""

from __future__ import annotations

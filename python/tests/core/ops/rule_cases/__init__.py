# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the calls by which the shipped rules are validated, a file per kind of ops."""

from __future__ import annotations

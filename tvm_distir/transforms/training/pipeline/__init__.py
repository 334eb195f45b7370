# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expand pipelined steps, as a sequential program or as a program per pipeline rank."""

from __future__ import annotations

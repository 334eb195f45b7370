# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Registers rule, local form and padding needs of TVM's ops, in a module per family."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recognize softmax attention that is written out, and replace it by the op."""

from __future__ import annotations

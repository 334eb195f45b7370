# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the repeated layers of flat functions and move them into private functions."""

from __future__ import annotations

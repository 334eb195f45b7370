# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Report a simulated step as text, JSON and HTML."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define losses, optimizer updates and the signature of a training step."""

from __future__ import annotations

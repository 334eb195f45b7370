# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``virtual`` runs all ranks in a single process, step by step."""

from __future__ import annotations

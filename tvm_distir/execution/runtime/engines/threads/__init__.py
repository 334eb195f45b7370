# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``threads`` runs a Disco worker thread per rank."""

from __future__ import annotations

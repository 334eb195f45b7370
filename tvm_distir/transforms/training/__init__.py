# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build training steps of models: loss, gradients and the optimizer's update in a function."""

from __future__ import annotations

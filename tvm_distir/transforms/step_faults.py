# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the errors about arguments of ``train_step``."""

from __future__ import annotations

from tvm_distir.support import ModelError


def wrong_argument(problem: str, remedy: str, name: str = "") -> ModelError:
    """Return the error about an argument, or about the model where no name is given (DIST0351)."""
    location = f"train_step ({name})" if name else "train_step"
    return ModelError("DIST0351", problem, location=location, remedy=remedy)

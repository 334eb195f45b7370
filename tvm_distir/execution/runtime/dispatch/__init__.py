# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Dispatch ops of level-5 modules to kernels of another library than TVM's."""

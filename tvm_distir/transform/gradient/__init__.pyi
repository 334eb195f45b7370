# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .optimizers import optimizer_named as optimizer_named
from .optimizers import read_optimizer as read_optimizer
from .passes import TrainStep as TrainStep
from .primfuncs import register_primfunc_gradient as register_primfunc_gradient
from .recompute import AUTO as AUTO
from .recompute import Auto as Auto
from .recompute import read_recompute as read_recompute
from .step import train_step as train_step

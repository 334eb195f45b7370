# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .locations import read_name as read_name
from .locations import unescaped as unescaped
from .parser import parse_module as parse_module
from .tree import Argument as Argument
from .tree import Block as Block
from .tree import Dense as Dense
from .tree import Module as Module
from .tree import Opaque as Opaque
from .tree import Operation as Operation
from .tree import OtherType as OtherType
from .tree import Symbol as Symbol
from .tree import TensorType as TensorType

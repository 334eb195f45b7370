# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .function_index import ALIAS as ALIAS
from .function_index import CAST as CAST
from .function_index import FUNCTION as FUNCTION
from .function_index import FUNCTION_CALL as FUNCTION_CALL
from .function_index import IF as IF
from .function_index import ITEM as ITEM
from .function_index import OP_CALL as OP_CALL
from .function_index import OTHER_CALL as OTHER_CALL
from .function_index import TUPLE as TUPLE
from .function_index import FunctionView as FunctionView
from .function_index import Member as Member
from .function_index import Readings as Readings
from .function_index import read_functions as read_functions
from .function_index import read_module as read_module
from .pruning import is_pure as is_pure
from .pruning import pruned as pruned
from .pruning import pruned_bindings as pruned_bindings
from .union_find import union_find as union_find

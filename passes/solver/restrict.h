// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// A problem with fewer states per variable.

#ifndef TVM_DISTIR_PASSES_RESTRICT_H_
#define TVM_DISTIR_PASSES_RESTRICT_H_

#include <cstdint>
#include <vector>

#include "solver/eliminate.h"
#include "solver/tables.h"

namespace tvm_distir {

struct Restricted {
  std::vector<Factor> factors;  // sorted by scope; none over a variable of one state
  int64_t constant = 0;
  bool feasible = true;         // false: the states left of some variables exclude each other
};

// A labelling of least cost, in the states of the problem.
struct Optimum {
  bool narrow = false;    // false: elimination would join a bucket of more than `limit` entries
  bool feasible = false;
  Ints values;
};

Optimum Optimise(Tables* tables, const Problem& problem, const std::vector<Ints>& states,
                 int64_t limit);

// `states`: what is left of each variable, ascending. Variables keep their numbers.
Restricted Restrict(Tables* tables, const Problem& problem, const std::vector<Ints>& states);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_RESTRICT_H_

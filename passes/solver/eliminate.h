// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Exact minimisation of a sum of tables by eliminating variables.

#ifndef TVM_DISTIR_PASSES_ELIMINATE_H_
#define TVM_DISTIR_PASSES_ELIMINATE_H_

#include <cstdint>
#include <vector>

#include "solver/tables.h"

namespace tvm_distir {

// A table over variables: its number and the sorted variables.
struct Factor {
  int64_t table;
  Ints scope;
};

struct Problem {
  Ints domains;  // number of values per variable
  std::vector<Factor> factors;
  std::vector<bool> keep;  // variables that stay
  int64_t limit = kInfinite;     // a variable whose bucket has more entries stays
  int64_t most_neighbours = -1;  // a variable with more neighbours stays; -1: no bound
};

// One eliminated variable: how to read its value off its neighbours' values.
struct Step {
  int64_t variable;
  Ints neighbours;
  const Join* join;
};

struct Elimination {
  std::vector<Step> steps;
  std::vector<Factor> left;  // tables over the variables that stay
  int64_t constant = 0;
  bool feasible = true;  // false: some variable has no value that its neighbours allow

  // Fills in the eliminated variables, last first.
  void Decode(int64_t* values) const;
};

// A variable that goes, and those that it then shares a table with.
struct Planned {
  int64_t variable;
  Ints neighbours;
};

// The variables that go, smallest bucket first; ties: the lowest variable. It follows from the
// domains, from which variables share a table, and from what the problem says of those that stay.
std::vector<Planned> OrderOf(const Problem& problem);

// Eliminates variables in their order.
Elimination Eliminate(Tables* tables, Problem problem, std::vector<Planned> order);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_ELIMINATE_H_

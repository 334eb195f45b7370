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

// Smallest bucket first; ties: the lowest variable.
Elimination Eliminate(Tables* tables, Problem problem);

// Entries of the largest bucket on the way; the largest int64 when they are too many to count.
// Joins nothing.
// Entries of the largest bucket that eliminating all variables joins; any number above `limit` where
// there are more.
int64_t Width(const Problem& problem, int64_t limit);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_ELIMINATE_H_

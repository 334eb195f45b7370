// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/arguments.h"

#include <limits>

namespace tvm_distir {

using tvm::ffi::TensorView;

void CheckTable(const Tables& tables, int64_t number) {
  if (!tables.Contains(number)) TVM_FFI_THROW(IndexError) << "there is no table " << number;
}

Ints Listed(const Int64View& view) {
  Ints values;
  values.reserve(view.size());
  for (int64_t i = 0; i < view.size(); ++i) values.push_back(view[i]);
  return values;
}

Ints ReadEntries(const Ints& shape, const TensorView& entries_in) {
  const Int64View view(entries_in, "entries");
  int64_t size = 1;
  for (const int64_t n : shape) {
    if (n < 1 || __builtin_mul_overflow(size, n, &size)) {
      TVM_FFI_THROW(ValueError) << "a table needs a positive size in every dim";
    }
  }
  view.CheckSize(size, "entries");
  view.CheckRange(-kInfinite, std::numeric_limits<int64_t>::max(), "entries");
  return Listed(view);
}

Problem ReadProblem(const Tables& tables, const TensorView& domains_in,
                    const TensorView& factors_in) {
  Problem problem;
  const Int64View domains(domains_in, "domains");
  domains.CheckRange(1, int64_t{1} << 31, "domains");
  problem.domains = Listed(domains);
  problem.keep.assign(domains.size(), false);
  ForEachFactor(tables, factors_in, problem.domains,
                [&](int64_t table, const int64_t* scope, size_t rank) {
                  problem.factors.push_back({table, Ints(scope, scope + rank)});
                });
  return problem;
}

std::vector<Ints> ReadStates(const Problem& problem, const TensorView& states_in) {
  const Int64View view(states_in, "states");
  std::vector<Ints> states(problem.domains.size());
  int64_t at = 0;
  for (size_t v = 0; v < states.size(); ++v) {
    const int64_t count = at < view.size() ? view[at++] : 0;
    if (count < 1 || count > view.size() - at) {
      TVM_FFI_THROW(ValueError) << "variable " << v << " has no states";
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t state = view[at++];
      if (state < 0 || state >= problem.domains[v]) {
        TVM_FFI_THROW(ValueError) << "variable " << v << " cannot be " << state;
      }
      states[v].push_back(state);
    }
  }
  return states;
}

void AppendFactors(const std::vector<Factor>& factors, Ints* out) {
  for (const Factor& factor : factors) {
    out->push_back(factor.table);
    out->push_back(static_cast<int64_t>(factor.scope.size()));
    out->insert(out->end(), factor.scope.begin(), factor.scope.end());
  }
}

}  // namespace tvm_distir

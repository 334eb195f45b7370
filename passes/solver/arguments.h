// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Problems as Python hands them over, lists of numbers, read with care; and written so.

#ifndef TVM_DISTIR_PASSES_ARGUMENTS_H_
#define TVM_DISTIR_PASSES_ARGUMENTS_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ffi/array.h"
#include "solver/eliminate.h"
#include "solver/tables.h"

namespace tvm_distir {

// Refuses a number that no table has.
void CheckTable(const Tables& tables, int64_t number);

// Values of `view` from first to last.
Ints Listed(const Int64View& view);

// The entries of a table of a shape: as many, none below the least that tables may hold.
Ints ReadEntries(const Ints& shape, const tvm::ffi::TensorView& entries_in);

// `factors_in`: per factor its table, the number of its variables, the variables.
Problem ReadProblem(const Tables& tables, const tvm::ffi::TensorView& domains_in,
                    const tvm::ffi::TensorView& factors_in);

// `states_in`: per variable the number of its states, the states.
std::vector<Ints> ReadStates(const Problem& problem, const tvm::ffi::TensorView& states_in);

// Writes factors as `ReadProblem` reads them.
void AppendFactors(const std::vector<Factor>& factors, Ints* out);

// Calls visit(table, scope, rank) for each factor of a list, checked against the domains.
template <typename Visit>
void ForEachFactor(const Tables& tables, const tvm::ffi::TensorView& factors_in,
                   const Ints& domains, const Visit& visit) {
  const Int64View view(factors_in, "factors");
  const int64_t count = static_cast<int64_t>(domains.size());
  for (int64_t i = 0; i < view.size();) {
    if (i + 2 > view.size()) TVM_FFI_THROW(ValueError) << "the list of factors ends too early";
    const int64_t table = view[i];
    CheckTable(tables, table);
    const Ints& shape = tables.at(table).shape;
    const int64_t rank = static_cast<int64_t>(shape.size());
    if (view[i + 1] != rank || i + 2 + rank > view.size()) {
      TVM_FFI_THROW(ValueError) << "table " << table << " has another number of dims";
    }
    const int64_t* scope = rank > 0 ? &view[i + 2] : nullptr;
    for (int64_t d = 0; d < rank; ++d) {
      const int64_t v = scope[d];
      const bool sorted = d == 0 || scope[d - 1] < v;
      if (v < 0 || v >= count || !sorted || domains[v] != shape[d]) {
        TVM_FFI_THROW(ValueError) << "table " << table << " does not fit variable " << v;
      }
    }
    visit(table, scope, static_cast<size_t>(rank));
    i += 2 + rank;
  }
}

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_ARGUMENTS_H_

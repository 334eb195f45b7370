// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Tables, and the eliminations done with them.

#ifndef TVM_DISTIR_PASSES_SESSION_H_
#define TVM_DISTIR_PASSES_SESSION_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "solver/dual.h"
#include "solver/eliminate.h"
#include "solver/tables.h"

namespace tvm_distir {

// Problems, states and factors come and go as lists of numbers (`solver/arguments.h`). A table is
// told by its number and the minimum that was taken out of it.
class Session {
 public:
  using Shape = tvm::ffi::Shape;
  using TensorView = tvm::ffi::TensorView;

  Shape Intern(const TensorView& shape_in, const TensorView& entries_in);
  // A table of two dims, of which those of size 1 are dropped.
  Shape InternRows(int64_t rows, int64_t columns, const TensorView& entries_in);
  Shape Add(int64_t first, int64_t second);
  Shape ShapeOf(int64_t number);
  void EntriesOf(int64_t number, const TensorView& out);

  // Returns the number of the elimination, the constant, whether it is feasible, the number of
  // variables left, these, and the factors left as they came. A problem met before is not
  // eliminated again.
  Shape Eliminate(const TensorView& domains_in, const TensorView& factors_in,
                  const TensorView& keep_in, int64_t limit, int64_t most_neighbours);
  // As `Eliminate` for all variables; empty where that would join a bucket of more than `limit`.
  Shape EliminateAll(const TensorView& domains_in, const TensorView& factors_in, int64_t limit);
  // Fills in the values of the variables that an elimination took out.
  void Decode(int64_t number, const TensorView& values_in);
  // Sum of the factors at an assignment, and whether it hits an infinite entry.
  Shape Evaluate(const TensorView& domains_in, const TensorView& factors_in,
                 const TensorView& values_in);

  // The problem with some states only: a constant, whether it is feasible, and the factors.
  Shape Restrict(const TensorView& domains_in, const TensorView& factors_in,
                 const TensorView& states_in);
  // The optimum over some states: whether it is feasible, the values; nothing when it is too wide.
  Shape Optimise(const TensorView& domains_in, const TensorView& factors_in,
                 const TensorView& states_in, int64_t limit);
  // Bounds of a problem of tables over one or two variables; costs above `most` do not count.
  std::shared_ptr<Dual> NewDual(const TensorView& domains_in, const TensorView& factors_in,
                                int64_t most);

  // The eliminations done so far cannot be decoded any more.
  void Forget();
  // Numbers of tables and joins, of what they hold, and of what the eliminations hold.
  Shape Counts() const;

 private:
  // Eliminates variables in their order; returns what `Eliminate` does, also when it is asked again
  // for what the question says.
  Shape Run(Problem problem, std::vector<Planned> order, Ints question);

  Tables tables_;
  std::vector<Elimination> done_;
  std::unordered_map<Ints, Shape, HashInts> answers_;  // by question
  int64_t forgotten_ = 0;  // eliminations before the first of these
  int64_t held_ = 0;       // numbers in these, and in the questions
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SESSION_H_

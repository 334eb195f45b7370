// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What Python calls: one set of tables is a list of functions that share it.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ffi/array.h"
#include "solver/dual.h"
#include "solver/dual_api.h"
#include "solver/eliminate.h"
#include "solver/restrict.h"
#include "solver/tables.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Shape;
using tvm::ffi::TensorView;

// Tables, and the eliminations done with them.
class Session {
 public:
  Shape Intern(const TensorView& shape_in, const TensorView& entries_in) {
    const Int64View shape_view(shape_in, "shape");
    Ints shape;
    for (int64_t i = 0; i < shape_view.size(); ++i) shape.push_back(shape_view[i]);
    return InternEntries(std::move(shape), entries_in);
  }

  // A table of two dims, of which those of size 1 are dropped.
  Shape InternRows(int64_t rows, int64_t columns, const TensorView& entries_in) {
    Ints shape;
    if (rows != 1) shape.push_back(rows);
    if (columns != 1) shape.push_back(columns);
    return InternEntries(std::move(shape), entries_in);
  }

  Shape Add(int64_t first, int64_t second) {
    Check(first);
    Check(second);
    if (tables_.at(first).shape != tables_.at(second).shape) {
      TVM_FFI_THROW(ValueError) << "tables " << first << " and " << second << " differ in shape";
    }
    return Pair(tables_.Add(first, second));
  }

  Shape ShapeOf(int64_t number) {
    Check(number);
    const Ints& shape = tables_.at(number).shape;
    return Shape(shape.begin(), shape.end());
  }

  Shape EntriesOf(int64_t number) {
    Check(number);
    const Ints& entries = tables_.at(number).entries;
    return Shape(entries.begin(), entries.end());
  }

  // `factors`: per factor its table, the number of its variables, the variables. Returns the
  // number of the elimination, the constant, whether it is feasible, the number of variables
  // left, these, and the factors left as they came.
  Shape Eliminate(const TensorView& domains_in, const TensorView& factors_in,
                  const TensorView& keep_in, int64_t limit, int64_t most_neighbours) {
    Problem problem = Read(domains_in, factors_in);
    const Int64View keep(keep_in, "keep");
    keep.CheckRange(0, static_cast<int64_t>(problem.domains.size()), "keep");
    for (int64_t i = 0; i < keep.size(); ++i) problem.keep[keep[i]] = true;
    problem.limit = limit;
    problem.most_neighbours = most_neighbours;
    const size_t count = problem.domains.size();
    std::vector<Planned> order = OrderOf(problem);
    done_.push_back(tvm_distir::Eliminate(&tables_, std::move(problem), std::move(order)));
    return Describe(count);
  }

  void Decode(int64_t number, const TensorView& values_in) {
    if (number < forgotten_ || number >= forgotten_ + static_cast<int64_t>(done_.size())) {
      TVM_FFI_THROW(IndexError) << "there is no elimination " << number;
    }
    const Int64View values(values_in, "values");
    const Elimination& done = done_[number - forgotten_];
    for (const Step& step : done.steps) {
      if (step.variable >= values.size()) {
        TVM_FFI_THROW(ValueError) << "no room for the value of variable " << step.variable;
      }
    }
    for (const Factor& factor : done.left) {
      for (const int64_t v : factor.scope) {
        if (v >= values.size()) TVM_FFI_THROW(ValueError) << "variable " << v << " has no value";
      }
    }
    if (values.size() > 0) done.Decode(&values[0]);
  }

  // Sum of the factors at an assignment, and whether it hits an infinite entry.
  Shape Evaluate(const TensorView& domains_in, const TensorView& factors_in,
                 const TensorView& values_in) {
    const Int64View domains_view(domains_in, "domains"), values(values_in, "values");
    Ints domains;
    for (int64_t v = 0; v < domains_view.size(); ++v) domains.push_back(domains_view[v]);
    values.CheckSize(domains_view.size(), "values");
    int64_t sum = 0, forbidden = 0;
    for (size_t v = 0; v < domains.size(); ++v) {
      if (values[v] < 0 || values[v] >= domains[v]) {
        TVM_FFI_THROW(ValueError) << "variable " << v << " cannot be " << values[v];
      }
    }
    ForEachFactor(factors_in, domains, [&](int64_t table, const int64_t* scope, size_t rank) {
      int64_t at = 0;
      for (size_t i = 0; i < rank; ++i) at = at * domains[scope[i]] + values[scope[i]];
      const int64_t entry = tables_.at(table).entries[at];
      if (entry >= kInfinite) forbidden = 1;
      sum = std::min(sum + entry, kInfinite);
    });
    return Shape({sum, forbidden});
  }

  // As `Eliminate` for all variables; empty where that would join a bucket of more than `limit`.
  Shape EliminateAll(const TensorView& domains_in, const TensorView& factors_in, int64_t limit) {
    Problem problem = Read(domains_in, factors_in);
    problem.limit = limit;
    const size_t count = problem.domains.size();
    std::vector<Planned> order = OrderOf(problem);
    if (order.size() < count) return Shape(Ints());
    done_.push_back(tvm_distir::Eliminate(&tables_, std::move(problem), std::move(order)));
    return Describe(count);
  }

  // The problem with some states only: a constant, whether it is feasible, and the factors.
  // `states_in`: per variable their number, the states.
  Shape Restrict(const TensorView& domains_in, const TensorView& factors_in,
                 const TensorView& states_in) {
    const Problem problem = Read(domains_in, factors_in);
    const Restricted found =
        tvm_distir::Restrict(&tables_, problem, ReadStates(problem, states_in));
    Ints out{found.constant, found.feasible};
    Append(found.factors, &out);
    return Shape(out.begin(), out.end());
  }

  // The optimum over some states: whether it is feasible, the values; nothing when it is too wide.
  Shape Optimise(const TensorView& domains_in, const TensorView& factors_in,
                 const TensorView& states_in, int64_t limit) {
    const Problem problem = Read(domains_in, factors_in);
    const std::vector<Ints> states = ReadStates(problem, states_in);
    const Optimum found = tvm_distir::Optimise(&tables_, problem, states, limit);
    Ints out;
    if (found.narrow) {
      out.push_back(found.feasible);
      out.insert(out.end(), found.values.begin(), found.values.end());
    }
    return Shape(out.begin(), out.end());
  }

  std::shared_ptr<Dual> NewDual(const TensorView& domains_in, const TensorView& factors_in,
                                int64_t most) {
    const Problem problem = Read(domains_in, factors_in);
    if (most < 0 || most >= kInfinite) TVM_FFI_THROW(ValueError) << "most is " << most;
    for (const Factor& factor : problem.factors) {
      if (factor.scope.empty() || factor.scope.size() > 2) {
        TVM_FFI_THROW(ValueError) << "table " << factor.table << " stands over no pair";
      }
    }
    return std::make_shared<Dual>(tables_, problem, most);
  }

  // The eliminations done so far cannot be decoded any more.
  void Forget() {
    forgotten_ += static_cast<int64_t>(done_.size());
    done_.clear();
  }

  Shape Counts() const { return Shape({tables_.count(), tables_.joins(), tables_.entries()}); }

 private:
  Shape InternEntries(Ints shape, const TensorView& entries_in) {
    const Int64View view(entries_in, "entries");
    int64_t size = 1;
    for (const int64_t n : shape) {
      if (n < 1 || __builtin_mul_overflow(size, n, &size)) {
        TVM_FFI_THROW(ValueError) << "a table needs a positive size in every dim";
      }
    }
    view.CheckSize(size, "entries");
    view.CheckRange(-kInfinite, std::numeric_limits<int64_t>::max(), "entries");
    Ints entries(size);
    for (int64_t i = 0; i < size; ++i) entries[i] = view[i];
    return Pair(tables_.Intern(std::move(shape), std::move(entries)));
  }

  Problem Read(const TensorView& domains_in, const TensorView& factors_in) const {
    Problem problem;
    const Int64View domains(domains_in, "domains");
    domains.CheckRange(1, int64_t{1} << 31, "domains");
    for (int64_t v = 0; v < domains.size(); ++v) problem.domains.push_back(domains[v]);
    problem.keep.assign(domains.size(), false);
    ForEachFactor(factors_in, problem.domains,
                  [&](int64_t table, const int64_t* scope, size_t rank) {
                    problem.factors.push_back({table, Ints(scope, scope + rank)});
                  });
    return problem;
  }

  static std::vector<Ints> ReadStates(const Problem& problem, const TensorView& states_in) {
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

  static void Append(const std::vector<Factor>& factors, Ints* out) {
    for (const Factor& factor : factors) {
      out->push_back(factor.table);
      out->push_back(static_cast<int64_t>(factor.scope.size()));
      out->insert(out->end(), factor.scope.begin(), factor.scope.end());
    }
  }

  static Shape Pair(const Interned& found) { return Shape({found.number, found.low}); }

  void Check(int64_t number) const {
    if (!tables_.Contains(number)) TVM_FFI_THROW(IndexError) << "there is no table " << number;
  }

  // Calls visit(table, scope, rank) for each factor of a list, checked against the domains.
  template <typename Visit>
  void ForEachFactor(const TensorView& list, const Ints& domains, const Visit& visit) const {
    const Int64View view(list, "factors");
    const int64_t count = static_cast<int64_t>(domains.size());
    for (int64_t i = 0; i < view.size();) {
      if (i + 2 > view.size()) TVM_FFI_THROW(ValueError) << "the list of factors ends too early";
      const int64_t table = view[i];
      Check(table);
      const Ints& shape = tables_.at(table).shape;
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

  Shape Describe(size_t count) const {
    const Elimination& done = done_.back();
    std::vector<bool> gone(count, false);
    for (const Step& step : done.steps) gone[step.variable] = true;
    Ints kept;
    for (size_t v = 0; v < gone.size(); ++v) {
      if (!gone[v]) kept.push_back(static_cast<int64_t>(v));
    }
    Ints out{forgotten_ + static_cast<int64_t>(done_.size()) - 1, done.constant, done.feasible,
             static_cast<int64_t>(kept.size())};
    out.insert(out.end(), kept.begin(), kept.end());
    Append(done.left, &out);
    return Shape(out.begin(), out.end());
  }

  Tables tables_;
  std::vector<Elimination> done_;
  int64_t forgotten_ = 0;  // eliminations before the first of these
};

// A function that calls a method of the session and keeps the session alive.
template <typename R, typename... Args>
Function Bound(const std::shared_ptr<Session>& session, R (Session::*method)(Args...)) {
  return Function::FromTyped(
      [session, method](Args... args) -> R { return (session.get()->*method)(args...); });
}

Array<Function> NewTables() {
  const auto session = std::make_shared<Session>();
  return {Bound(session, &Session::Intern),    Bound(session, &Session::InternRows),
          Bound(session, &Session::Add),
          Bound(session, &Session::ShapeOf),   Bound(session, &Session::EntriesOf),
          Bound(session, &Session::Eliminate), Bound(session, &Session::Decode),
          Bound(session, &Session::Evaluate),
          Bound(session, &Session::EliminateAll),     Bound(session, &Session::Restrict),
          Bound(session, &Session::Optimise),
          Function::FromTyped([session](const TensorView& domains, const TensorView& factors,
                                        int64_t most) {
            return DualFunctions(session->NewDual(domains, factors, most));
          }),
          Function::FromTyped([session]() { session->Forget(); }),
          Function::FromTyped([session]() { return session->Counts(); })};
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tables, tvm_distir::NewTables);

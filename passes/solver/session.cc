// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/session.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <utility>

#include "ffi/array.h"
#include "solver/arguments.h"
#include "solver/restrict.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::TensorView;

constexpr int64_t kNoBound = -1;
constexpr size_t kLeft = 3;  // where an answer has the number of variables left

Shape Pair(const Interned& found) { return Shape({found.number, found.low}); }

Shape Whole(const Ints& values) { return Shape(values.begin(), values.end()); }

Shape InternOf(Tables* tables, Ints shape, const TensorView& entries_in) {
  Ints entries = ReadEntries(shape, entries_in);
  return Pair(tables->Intern(std::move(shape), std::move(entries)));
}

// All that an elimination follows from: a bound on the entries of buckets, one on neighbours (-1:
// none), domains, factors, and the variables that stay.
Ints Question(int64_t limit, int64_t most, const Int64View& domains, const Int64View& factors,
              const Ints& keep) {
  Ints said{limit, most, domains.size(), factors.size()};
  said.reserve(said.size() + domains.size() + factors.size() + keep.size());
  for (const Int64View* view : {&domains, &factors}) {
    for (int64_t i = 0; i < view->size(); ++i) said.push_back((*view)[i]);
  }
  said.insert(said.end(), keep.begin(), keep.end());
  return said;
}

}  // namespace

Shape Session::Intern(const TensorView& shape_in, const TensorView& entries_in) {
  return InternOf(&tables_, Listed(Int64View(shape_in, "shape")), entries_in);
}

Shape Session::InternRows(int64_t rows, int64_t columns, const TensorView& entries_in) {
  Ints shape;
  if (rows != 1) shape.push_back(rows);
  if (columns != 1) shape.push_back(columns);
  return InternOf(&tables_, std::move(shape), entries_in);
}

Shape Session::Add(int64_t first, int64_t second) {
  CheckTable(tables_, first);
  CheckTable(tables_, second);
  if (tables_.at(first).shape != tables_.at(second).shape) {
    TVM_FFI_THROW(ValueError) << "tables " << first << " and " << second << " differ in shape";
  }
  return Pair(tables_.Add(first, second));
}

Shape Session::ShapeOf(int64_t number) {
  CheckTable(tables_, number);
  return Whole(tables_.at(number).shape);
}

void Session::EntriesOf(int64_t number, const TensorView& out) {
  CheckTable(tables_, number);
  Give(tables_.at(number).entries, out, "out");
}

Shape Session::Eliminate(const TensorView& domains_in, const TensorView& factors_in,
                         const TensorView& keep_in, int64_t limit, int64_t most_neighbours) {
  const Int64View keep(keep_in, "keep");
  Ints question = Question(limit, most_neighbours, Int64View(domains_in, "domains"),
                           Int64View(factors_in, "factors"), Listed(keep));
  const auto known = answers_.find(question);
  if (known != answers_.end()) return known->second;
  Problem problem = ReadProblem(tables_, domains_in, factors_in);
  keep.CheckRange(0, static_cast<int64_t>(problem.domains.size()), "keep");
  for (int64_t i = 0; i < keep.size(); ++i) problem.keep[keep[i]] = true;
  problem.limit = limit;
  problem.most_neighbours = most_neighbours;
  std::vector<Planned> order = OrderOf(problem);
  return Run(std::move(problem), std::move(order), std::move(question));
}

void Session::Decode(int64_t number, const TensorView& values_in) {
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

Shape Session::Evaluate(const TensorView& domains_in, const TensorView& factors_in,
                        const TensorView& values_in) {
  const Int64View domains_view(domains_in, "domains"), values(values_in, "values");
  const Ints domains = Listed(domains_view);
  values.CheckSize(domains_view.size(), "values");
  int64_t sum = 0, forbidden = 0;
  for (size_t v = 0; v < domains.size(); ++v) {
    if (values[v] < 0 || values[v] >= domains[v]) {
      TVM_FFI_THROW(ValueError) << "variable " << v << " cannot be " << values[v];
    }
  }
  const auto add = [&](int64_t table, const int64_t* scope, size_t rank) {
    int64_t at = 0;
    for (size_t i = 0; i < rank; ++i) at = at * domains[scope[i]] + values[scope[i]];
    const int64_t entry = tables_.at(table).entries[at];
    if (entry >= kInfinite) forbidden = 1;
    sum = std::min(sum + entry, kInfinite);
  };
  ForEachFactor(tables_, factors_in, domains, add);
  return Shape({sum, forbidden});
}

Shape Session::EliminateAll(const TensorView& domains_in, const TensorView& factors_in,
                            int64_t limit) {
  Ints question = Question(limit, kNoBound, Int64View(domains_in, "domains"),
                           Int64View(factors_in, "factors"), {});
  const auto known = answers_.find(question);
  if (known != answers_.end() && known->second[kLeft] == 0) return known->second;
  Problem problem = ReadProblem(tables_, domains_in, factors_in);
  problem.limit = limit;
  std::vector<Planned> order = OrderOf(problem);
  if (order.size() < problem.domains.size()) return Shape(Ints());
  return Run(std::move(problem), std::move(order), std::move(question));
}

Shape Session::Restrict(const TensorView& domains_in, const TensorView& factors_in,
                        const TensorView& states_in) {
  const Problem problem = ReadProblem(tables_, domains_in, factors_in);
  const std::vector<Ints> states = ReadStates(problem, states_in);
  const Restricted found = tvm_distir::Restrict(&tables_, problem, states);
  Ints out{found.constant, found.feasible};
  AppendFactors(found.factors, &out);
  return Whole(out);
}

Shape Session::Optimise(const TensorView& domains_in, const TensorView& factors_in,
                        const TensorView& states_in, int64_t limit) {
  const Problem problem = ReadProblem(tables_, domains_in, factors_in);
  const std::vector<Ints> states = ReadStates(problem, states_in);
  const Optimum found = tvm_distir::Optimise(&tables_, problem, states, limit);
  Ints out;
  if (found.narrow) {
    out.push_back(found.feasible);
    out.insert(out.end(), found.values.begin(), found.values.end());
  }
  return Whole(out);
}

std::shared_ptr<Dual> Session::NewDual(const TensorView& domains_in, const TensorView& factors_in,
                                       int64_t most) {
  const Problem problem = ReadProblem(tables_, domains_in, factors_in);
  if (most < 0 || most >= kInfinite) TVM_FFI_THROW(ValueError) << "most is " << most;
  for (const Factor& factor : problem.factors) {
    if (factor.scope.empty() || factor.scope.size() > 2) {
      TVM_FFI_THROW(ValueError) << "table " << factor.table << " stands over no pair";
    }
  }
  return std::make_shared<Dual>(tables_, problem, most);
}

void Session::Forget() {
  forgotten_ += static_cast<int64_t>(done_.size());
  done_.clear();
  answers_.clear();
  held_ = 0;
}

Shape Session::Counts() const {
  return Shape({tables_.count(), tables_.joins(), tables_.entries(), held_});
}

Shape Session::Run(Problem problem, std::vector<Planned> order, Ints question) {
  std::vector<bool> gone(problem.domains.size(), false);
  done_.push_back(tvm_distir::Eliminate(&tables_, std::move(problem), std::move(order)));
  const Elimination& done = done_.back();
  for (const Step& step : done.steps) {
    gone[step.variable] = true;
    held_ += static_cast<int64_t>(step.neighbours.size()) + 1;
  }
  Ints kept;
  for (size_t v = 0; v < gone.size(); ++v) {
    if (!gone[v]) kept.push_back(static_cast<int64_t>(v));
  }
  Ints out{forgotten_ + static_cast<int64_t>(done_.size()) - 1, done.constant, done.feasible,
           static_cast<int64_t>(kept.size())};
  out.insert(out.end(), kept.begin(), kept.end());
  AppendFactors(done.left, &out);
  held_ += static_cast<int64_t>(question.size() + out.size());
  return answers_.insert_or_assign(std::move(question), Whole(out)).first->second;
}

}  // namespace tvm_distir

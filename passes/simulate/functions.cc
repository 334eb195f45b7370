// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/functions.h"

#include <tvm/ffi/error.h>

#include <limits>
#include <utility>

#include "simulate/summarise.h"

namespace tvm_distir {
namespace simulate {
namespace {

constexpr int64_t kFunctionColumns = 4;
constexpr int64_t kOpColumns = 7;

void CheckRange(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value < low || value >= high) {
    TVM_FFI_THROW(ValueError) << name << " is " << value << ", not in [" << low << ", " << high
                              << ")";
  }
}

void CheckAll(const int64_t* begin, int64_t count, int64_t high, const char* name) {
  for (int64_t i = 0; i < count; ++i) CheckRange(begin[i], -1, high, name);
}

// Takes consecutive parts of an array.
class Parts {
 public:
  Parts(const Ints& whole, const char* name) : whole_(whole), name_(name) {}
  const int64_t* Take(int64_t count) {
    if (count < 0 || at_ + count > static_cast<int64_t>(whole_.size())) {
      TVM_FFI_THROW(ValueError) << name_ << " has " << whole_.size() << " entries, more are needed";
    }
    at_ += count;
    return whole_.data() + at_ - count;
  }

 private:
  const Ints& whole_;
  const char* name_;
  int64_t at_ = 0;
};

}  // namespace

Functions::Functions(const Ints& functions, const Ints& ops, Ints ins, Ints outs, Ints results)
    : ins_(std::move(ins)), outs_(std::move(outs)), results_(std::move(results)) {
  Parts rows(functions, "functions"), op_rows(ops, "ops");
  Parts in_part(ins_, "ins"), out_part(outs_, "outs"), result_part(results_, "results");
  const int64_t count = static_cast<int64_t>(functions.size()) / kFunctionColumns;
  int64_t number = 0;
  functions_.resize(count);
  for (int64_t id = 0; id < count; ++id) {
    const int64_t* row = rows.Take(kFunctionColumns);
    Function& f = functions_[id];
    f.params = row[0];
    f.values = row[1];
    CheckRange(f.params, 0, f.values + 1, "the number of parameters");
    for (int64_t o = 0; o < row[2]; ++o) {
      const int64_t* r = op_rows.Take(kOpColumns);
      Op op{number++, r[0], (r[1] & 3) != 0, (r[1] & 2) != 0, (r[1] & 4) != 0, (r[1] & 8) != 0,
            r[2], r[3], r[4], in_part.Take(r[5]), r[5], out_part.Take(r[6]), r[6]};
      CheckAll(op.ins, op.in_count, f.values, "an operand");
      CheckAll(op.outs, op.out_count, f.values, "a result");
      CheckRange(op.callee, -1, id, "a callee");
      CheckRange(op.duration, 0, std::numeric_limits<int64_t>::max(), "a duration");
      CheckRange(op.issue, 0, std::numeric_limits<int64_t>::max(), "the time of an issue");
      if (op.callee < 0) {
        CheckRange(op.stream, 0, kHost, "a stream");
      } else if (op.in_count != functions_[op.callee].params ||
                 op.out_count != functions_[op.callee].result_count) {
        TVM_FFI_THROW(ValueError) << "a call with " << op.in_count << " operands and "
                                  << op.out_count << " results does not fit its callee";
      }
      f.tasks += op.callee < 0 ? 1 : functions_[op.callee].tasks;
      if (op.callee < 0 ? op.stream == kCompute : functions_[op.callee].first >= 0) {
        f.last = o;
        if (f.first < 0) f.first = o;
      }
      f.ops.push_back(op);
    }
    f.results = result_part.Take(row[3]);
    f.result_count = row[3];
    CheckAll(f.results, f.result_count, f.values, "a result");
    f.classes.assign(f.params, kAtHand);
    Trace(&f);
  }
}

// Bottom up: which parameters matter, what becomes of them, where results come from.
void Functions::Trace(Function* f) {
  f->apart.assign(f->params, false);
  f->settles.assign(f->params, false);
  Ints origin(f->values, kIsSettled);
  for (int64_t p = 0; p < f->params; ++p) origin[p] = p;
  auto mark = [&](std::vector<char>* marks, int64_t value) {
    if (value >= 0 && origin[value] >= 0) (*marks)[origin[value]] = true;
  };
  auto settle = [&](int64_t value) {
    mark(&f->settles, value);
    if (value >= 0 && origin[value] == kIsFree) origin[value] = kIsSettled;
  };
  for (const Op& op : f->ops) {
    const Function* callee = op.callee < 0 ? nullptr : &functions_[op.callee];
    Ints came(op.out_count, op.callee < 0 && !op.busies() ? kIsFree : kIsSettled);
    for (int64_t k = 0; k < op.in_count; ++k) {
      if (callee ? callee->apart[k] : !op.waits()) mark(&f->apart, op.ins[k]);
      if (callee ? callee->settles[k] : op.busies()) settle(op.ins[k]);
    }
    for (int64_t k = 0; callee && k < op.out_count; ++k) {
      const int64_t from = callee->origin[k];
      came[k] = from < 0 ? from : op.ins[from] < 0 ? kIsSettled : origin[op.ins[from]];
    }
    for (int64_t k = 0; k < op.out_count; ++k) {
      if (op.outs[k] >= 0) origin[op.outs[k]] = came[k];
    }
  }
  for (int64_t r = 0; r < f->result_count; ++r) {
    const int64_t value = f->results[r];
    mark(&f->apart, value);
    f->origin.push_back(value < 0 ? kIsSettled : origin[value]);
  }
}

int64_t Functions::Edge(int64_t id, const int64_t* times, bool last) const {
  const Function& f = functions_[id];
  if (f.first < 0) return kNever;
  const int64_t o = last ? f.last : f.first;
  const Op& op = f.ops[o];
  const int64_t* row = &f.summary.starts[f.summary.row_at[o]];
  if (op.callee < 0) return Dot(row, times, f.ports) + (last ? op.duration : 0);
  Ints inner(functions_[op.callee].ports);
  for (size_t k = 0; k < inner.size(); ++k) inner[k] = Dot(row + k * f.ports, times, f.ports);
  return Edge(op.callee, inner.data(), last);
}

void Functions::Open(int64_t id, const Ints& classes) {
  CheckRange(id, 0, size(), "a function");
  Function& f = functions_[id];
  if (classified_ || static_cast<int64_t>(classes.size()) != f.params) {
    TVM_FFI_THROW(ValueError) << "classes of " << f.params << " parameters are given before a run";
  }
  for (int64_t p = 0; p < f.params; ++p) f.classes[p] = std::max(f.classes[p], classes[p]);
}

// Top down: how late each parameter of each function may be.
void Functions::Classify() {
  if (classified_) return;
  for (int64_t id = size() - 1; id >= 0; --id) {
    const Function& f = functions_[id];
    Ints found(f.values, kAtHand);
    std::copy(f.classes.begin(), f.classes.end(), found.begin());
    auto of = [&](int64_t value) { return value < 0 ? int64_t{kAtHand} : found[value]; };
    for (const Op& op : f.ops) {
      Function* callee = op.callee < 0 ? nullptr : &functions_[op.callee];
      for (int64_t k = 0; k < op.in_count; ++k) {
        if (callee) callee->classes[k] = std::max(callee->classes[k], of(op.ins[k]));
      }
      for (int64_t k = 0; k < op.in_count; ++k) {
        if ((callee ? callee->settles[k] : op.busies()) && of(op.ins[k]) == kFree) {
          found[op.ins[k]] = kSettled;
        }
      }
      for (int64_t k = 0; k < op.out_count; ++k) {
        if (op.outs[k] < 0) continue;
        const int64_t from = callee ? callee->origin[k] : op.busies() ? kIsSettled : kIsFree;
        found[op.outs[k]] = from >= 0 ? of(op.ins[from]) : from == kIsFree ? kFree : kSettled;
      }
    }
  }
  for (Function& f : functions_) {
    f.port_of.assign(f.params, -1);
    for (int64_t p = 0; p < f.params; ++p) {
      if (f.classes[p] == kFree || (f.classes[p] == kSettled && f.apart[p])) {
        f.port_of[p] = f.ports++;
      }
    }
  }
  classified_ = true;
}

const Function& Functions::Summarised(int64_t id) {
  CheckRange(id, 0, size(), "a function");
  Classify();
  Function& f = functions_[id];
  if (!f.summarised) {
    Exact exact;
    f.summary = Summarise(&exact, *this, f, [this](int64_t callee) -> const Summary<int64_t>& {
      return Summarised(callee).summary;
    });
    f.summarised = true;
  }
  return f;
}

}  // namespace simulate
}  // namespace tvm_distir

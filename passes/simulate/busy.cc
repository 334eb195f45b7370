// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/busy.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tvm_distir {
namespace simulate {
namespace {

using Interval = std::pair<int64_t, int64_t>;
using Intervals = std::vector<Interval>;

// What a run does, in times behind the first of its ports.
struct Profile {
  Intervals computing, talking;
};

void Add(Intervals* to, int64_t start, int64_t end) {
  if (end <= start) return;
  if (!to->empty() && to->back().second == start) {
    to->back().second = end;
  } else {
    to->emplace_back(start, end);
  }
}

Profile ProfileOf(const Functions& functions, int64_t id, const int64_t* times) {
  Profile found;
  functions.Expand(id, times, [&](const Op& op, int64_t start) {
    Add(op.stream == kCompute ? &found.computing : &found.talking, start, start + op.duration);
  });
  return found;
}

// Sorted and disjoint.
Intervals Union(Intervals all) {
  if (!std::is_sorted(all.begin(), all.end())) std::sort(all.begin(), all.end());
  Intervals out;
  for (const Interval& one : all) {
    if (!out.empty() && one.first <= out.back().second) {
      out.back().second = std::max(out.back().second, one.second);
    } else {
      out.push_back(one);
    }
  }
  return out;
}

int64_t Length(const Intervals& of) {
  int64_t sum = 0;
  for (const Interval& one : of) sum += one.second - one.first;
  return sum;
}

int64_t Common(const Intervals& a, const Intervals& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t start = std::max(a[i].first, b[j].first);
    const int64_t end = std::min(a[i].second, b[j].second);
    if (end > start) sum += end - start;
    ++(a[i].second < b[j].second ? i : j);
  }
  return sum;
}

Intervals Pairs(const Ints& flat) {
  Intervals out;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    if (flat[i + 1] > flat[i]) out.emplace_back(flat[i], flat[i + 1]);
  }
  return out;
}

}  // namespace

Busy MeasureBusy(Functions* functions, const Ints& runs, const Ints& times, const Ints& computing,
                 const Ints& talking) {
  Intervals compute = Pairs(computing), comm = Pairs(talking);
  std::map<Ints, Profile> known;  // by function and times behind the compute stream's
  std::vector<std::map<Ints, Profile>::iterator> last(functions->size(), known.end());
  int64_t at = 0;
  Ints key;
  for (const int64_t id : runs) {
    const Function& f = functions->Summarised(id);
    if (at + f.ports > static_cast<int64_t>(times.size())) {
      TVM_FFI_THROW(ValueError) << "times has " << times.size() << " entries, more are needed";
    }
    const int64_t first = times[at + kCompute];
    key.assign(1, id);
    for (int64_t p = 0; p < f.ports; ++p) {
      key.push_back(times[at + p] <= kNever ? kNever : times[at + p] - first);
    }
    at += f.ports;
    auto& found = last[id];
    if (found == known.end() || found->first != key) found = known.find(key);
    if (found == known.end()) {
      found = known.emplace(key, ProfileOf(*functions, id, key.data() + 1)).first;
    }
    for (const Interval& one : found->second.computing) {
      Add(&compute, first + one.first, first + one.second);
    }
    for (const Interval& one : found->second.talking) {
      Add(&comm, first + one.first, first + one.second);
    }
  }
  compute = Union(std::move(compute));
  comm = Union(std::move(comm));
  return {Length(compute), Length(comm), Common(compute, comm)};
}

}  // namespace simulate
}  // namespace tvm_distir

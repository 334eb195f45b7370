// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The collectives that compiled level-5 code calls (signatures: tvm_distir/runtime/ccl.py), with
// the bits of their reference, tvm_distir/runtime/collectives.py. Ranks are threads of one process
// and read each other's tensors where they lie.

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "ccl_reduce.h"
#include "fabric.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::TensorView;
using Dims = std::array<int64_t, kMaxDims>;

constexpr int64_t kTileBytes = 32768;
constexpr int64_t kMostTasks = 1 << 20;
constexpr const char* kLoweringBug = "This is a bug of the lowering.";

// In the order of NATIVE_KINDS in tvm_distir/native/ccl.py.
enum Kind : int64_t {
  kAllReduce, kAllGather, kReduceScatter, kAllToAll, kPermute, kLocalSlice, kPartial, kAxisIndex
};
struct KindInfo {
  const char* name;
  const char* args[2];
};
constexpr KindInfo kKinds[] = {{"all_reduce", {"op", nullptr}},
                               {"all_gather", {"dim", nullptr}},
                               {"reduce_scatter", {"dim", "op"}},
                               {"all_to_all", {"gather_dim", "split_dim"}},
                               {"collective_permute", {"shift", nullptr}},
                               {"local_slice", {"dim", nullptr}},
                               {"partial", {"op", nullptr}},
                               {"axis_index", {nullptr, nullptr}}};
constexpr const char* kOpNames[] = {"sum", "prod", "min", "max"};

// ---- words for messages -------------------------------------------------------------------------

std::string CallText(const Request& request) {
  const KindInfo& info = kKinds[request.kind];
  std::ostringstream text;
  text << info.name << "(";
  for (int i = 0; i < 2 && info.args[i]; ++i) {
    text << (i ? ", " : "") << info.args[i] << "=";
    const int64_t value = request.args[i];
    if (std::string(info.args[i]) == "op" && value >= 0 && value < kReduceOpCount) {
      text << kOpNames[value];
    } else {
      text << value;
    }
  }
  text << ")";
  return text.str();
}

std::string TypeText(DLDataType dtype, int64_t ndim, const int64_t* shape) {
  std::ostringstream text;
  text << tvm::ffi::DLDataTypeToString(dtype) << "[";
  for (int64_t i = 0; i < ndim; ++i) text << (i ? ", " : "") << shape[i];
  text << "]";
  return text.str();
}

int64_t ElementBytes(DLDataType dtype) { return (dtype.bits * dtype.lanes + 7) / 8; }

int64_t Product(const int64_t* begin, const int64_t* end) {
  int64_t product = 1;
  for (; begin != end; ++begin) product *= *begin;
  return product;
}

int64_t Elements(const Request& r) { return Product(r.shape.data(), r.shape.data() + r.ndim); }
int64_t Bytes(const Request& r) { return Elements(r) * ElementBytes(r.dtype); }

std::string RequestText(const Request& r) {
  std::ostringstream text;
  text << CallText(r) << " on " << Bytes(r) << " bytes ("
       << TypeText(r.dtype, r.ndim, r.shape.data()) << ")";
  return text.str();
}

[[noreturn]] void RefuseCall(const Request& request, const std::string& what,
                             const std::string& remedy) {
  Refuse("DIST0611", CallText(request), what, remedy);
}

// ---- operands -----------------------------------------------------------------------------------

char* Data(const TensorView& tensor) {
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

void CheckPlain(const Request& request, const TensorView& tensor, const char* name) {
  if (tensor.device().device_type != kDLCPU || !tensor.IsContiguous() ||
      tensor.ndim() > kMaxDims || tensor.dtype().bits * tensor.dtype().lanes < 8) {
    if (tensor.dtype().code == kDLUInt && tensor.dtype().bits == 1 && tensor.IsContiguous()) return;
    RefuseCall(request,
               std::string(name) + " is not a contiguous CPU tensor of whole bytes and at most " +
                   std::to_string(kMaxDims) + " dims",
               kLoweringBug);
  }
}

Request MakeRequest(Kind kind, int64_t first, int64_t second, const TensorView& x,
                    const TensorView& out) {
  Request request{};
  request.kind = kind;
  request.args = {first, second};
  CheckPlain(request, x, "the operand");
  CheckPlain(request, out, "the result");
  request.dtype = x.dtype();
  request.ndim = x.ndim();
  for (int64_t i = 0; i < request.ndim; ++i) request.shape[i] = x.size(i);
  request.source = Data(x);
  request.target = Data(out);
  return request;
}

// A dim counted from the front.
int64_t Dim(const Request& request, int64_t dim) {
  if (dim < -request.ndim || dim >= request.ndim) {
    RefuseCall(request, "there is no dim " + std::to_string(dim), kLoweringBug);
  }
  return dim < 0 ? dim + request.ndim : dim;
}

void Divide(const Request& request, Dims* shape, int64_t dim, int64_t parts) {
  const int64_t extent = (*shape)[dim];
  if (extent % parts) {
    RefuseCall(request,
               "dim " + std::to_string(dim) + " of size " + std::to_string(extent) +
                   " is not divisible by the " + std::to_string(parts) + " ranks of the group",
               "Pad it to " + std::to_string((extent / parts + 1) * parts) + " first.");
  }
  (*shape)[dim] = extent / parts;
}

void CheckResult(const Request& request, const TensorView& out, const Dims& expected) {
  const DLDataType dtype = out.dtype(), wanted = request.dtype;
  bool same = out.ndim() == request.ndim && dtype.code == wanted.code &&
              dtype.bits == wanted.bits && dtype.lanes == wanted.lanes;
  for (int64_t i = 0; same && i < request.ndim; ++i) same = out.size(i) == expected[i];
  if (same) return;
  RefuseCall(request,
             "the result is " + TypeText(wanted, request.ndim, expected.data()) +
                 ", the code expects " + TypeText(dtype, out.ndim(), out.shape().data()),
             kLoweringBug);
}

const Reducer& ReducerOf(const Request& request, int64_t op) {
  if (op < 0 || op >= kReduceOpCount) {
    RefuseCall(request, "unknown reduction " + std::to_string(op), kLoweringBug);
  }
  const Reducer* reducer = FindReducer(request.dtype);
  if (!reducer) {
    RefuseCall(request,
               "no native reduction of " + TypeText(request.dtype, request.ndim,
                                                    request.shape.data()),
               "Run ThreadsEngine(collectives=\"python\").");
  }
  return *reducer;
}

void Copy(char* target, const char* source, int64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
}

// Copies a box of `extent` between row-major tensors, from and to the offsets (all in elements).
void CopyBox(char* target, const Dims& target_shape, const Dims& target_at, const char* source,
             const Dims& source_shape, const Dims& source_at, const Dims& extent, int64_t ndim,
             int64_t element_bytes) {
  if (Product(extent.data(), extent.data() + ndim) == 0) return;
  Dims target_stride{}, source_stride{};
  int64_t run = element_bytes, outer = ndim;  // one memcpy of `run` bytes covers dims >= outer
  bool whole = true;
  for (int64_t i = ndim - 1, t = element_bytes, s = element_bytes; i >= 0; --i) {
    target_stride[i] = t;
    source_stride[i] = s;
    target += target_at[i] * t;
    source += source_at[i] * s;
    t *= target_shape[i];
    s *= source_shape[i];
    if (whole) {
      run *= extent[i];
      outer = i;
      whole = extent[i] == target_shape[i] && extent[i] == source_shape[i];
    }
  }
  Dims index{};
  for (;;) {
    std::memcpy(target, source, run);
    int64_t i = outer - 1;
    for (; i >= 0; --i) {
      target += target_stride[i];
      source += source_stride[i];
      if (++index[i] < extent[i]) break;
      target -= extent[i] * target_stride[i];
      source -= extent[i] * source_stride[i];
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

// ---- the frame of every collective ---------------------------------------------------------------

const Membership& FindMembership(Worker* worker, const Request& request, const Shape& groups,
                                 int64_t group_size) {
  std::pair<Ranks, int64_t> key(Ranks(groups.begin(), groups.end()), group_size);
  const auto found = worker->memberships.find(key);
  if (found != worker->memberships.end()) return found->second;
  const Ranks& all = key.first;
  const int64_t count = static_cast<int64_t>(all.size());
  if (group_size < 1 || group_size >= Meeting::kArrivals || count % group_size) {
    RefuseCall(request, "groups of " + std::to_string(group_size) + " ranks", kLoweringBug);
  }
  for (int64_t begin = 0; begin < count; begin += group_size) {
    const Ranks group(all.begin() + begin, all.begin() + begin + group_size);
    const auto mine = std::find(group.begin(), group.end(), worker->rank);
    if (mine == group.end()) continue;
    if (std::set<int64_t>(group.begin(), group.end()).size() != group.size()) {
      RefuseCall(request, "a group names a rank twice: " + RanksText(group), kLoweringBug);
    }
    const Membership made{worker->fabric->FindGroup(group),
                          static_cast<size_t>(mine - group.begin())};
    return worker->memberships.emplace(std::move(key), made).first->second;
  }
  Refuse("DIST0611", "",
         "rank " + std::to_string(worker->rank) + " takes part in " + CallText(request) +
             " but is in none of its groups (" + RanksText(all) + ")",
         "Run the function on the devices of its mesh.");
}

// Runs `body(worker)`; what it throws is recorded for the other ranks before it leaves.
template <typename Body>
void Guarded(Kind kind, const Body& body) {
  Worker* worker = CurrentWorker();
  if (!worker) {
    Refuse("DIST0605", kKinds[kind].name,
           std::string("tvm_distir.ccl.") + kKinds[kind].name +
               " was called outside of a run of several ranks",
           "Run the module with tvm_distir.run.");
  }
  try {
    body(worker);
  } catch (const tvm::ffi::Error& error) {
    worker->fabric->Fail(worker->rank, error.message());
    throw;
  } catch (const std::exception& error) {
    worker->fabric->Fail(worker->rank, error.what());
    throw;
  }
}

// The requests of a group's ranks once they have met.
class Gathering {
 public:
  // A request of at most kStagedBytes leaves its data in the slot.
  Gathering(Worker* worker, const Membership& place, const Request& request)
      : group_(place.group),
        round_(group_->rounds[place.position].load(std::memory_order_relaxed) + 1),
        staged_(Bytes(request) <= kStagedBytes) {
    Slot& mine = group_->slot(round_, place.position);
    mine.request = request;
    if (staged_) Copy(mine.staged, request.source, Bytes(request));
    sources_.reserve(group_->size());
    worker->fabric->Meet(group_, place.position, [&request] { return CallText(request); });
    // All have left the collective before this one, so its counter is free.
    if (place.position == 0) group_->tasks[(round_ + 1) & 1].Reset();
    Compare();
    for (size_t i = 0; i < group_->size(); ++i) {
      Slot& slot = group_->slot(round_, i);
      sources_.push_back(staged_ ? slot.staged : slot.request.source);
    }
  }

  // The bytes of every rank, in group order.
  const std::vector<const char*>& sources() const { return sources_; }
  char* target(size_t member) const { return group_->slot(round_, member).request.target; }
  bool staged() const { return staged_; }
  TaskCounter& tasks() const { return group_->tasks[round_ & 1]; }

 private:
  // All ranks see the same requests, so all throw or none does.
  void Compare() const {
    const Request& first = group_->slot(round_, 0).request;
    for (size_t i = 1; i < group_->size(); ++i) {
      const Request& other = group_->slot(round_, i).request;
      if (other.kind == first.kind && other.args == first.args && other.ndim == first.ndim &&
          other.shape == first.shape && other.dtype.code == first.dtype.code &&
          other.dtype.bits == first.dtype.bits && other.dtype.lanes == first.dtype.lanes) {
        continue;
      }
      const std::string ranks = RanksText(group_->ranks);
      Refuse("DIST0611", "group [" + ranks.substr(ranks.find(' ') + 1) + "]",
             "rank " + std::to_string(group_->ranks[i]) + " called " + RequestText(other) +
                 " while rank " + std::to_string(group_->ranks[0]) + " called " +
                 RequestText(first),
             "All ranks of a group must call the same collectives in one order.");
    }
  }

  Group* group_;
  uint32_t round_;
  bool staged_;
  std::vector<const char*> sources_;
};

bool Overlap(const char* a, int64_t a_bytes, const char* b, int64_t b_bytes) {
  return std::less<>()(a, b + b_bytes) && std::less<>()(b, a + a_bytes);
}

// A collective with traffic. `work(gathering, task)` must not throw. Data in slots is worked on by
// each rank for itself, with its position as the task; else `tasks` tasks are shared by all ranks.
// A result that shares memory with the operand gets a copy of the operand instead.
template <typename Work>
void Exchange(Worker* worker, const Membership& place, Request request, const Shape& groups,
              int64_t out_bytes, int64_t tasks, const Work& work) {
  std::vector<char> copy;
  const int64_t bytes = Bytes(request);
  if (bytes > kStagedBytes && Overlap(request.source, bytes, request.target, out_bytes)) {
    copy.assign(request.source, request.source + bytes);
    request.source = copy.data();
  }
  const Gathering gathering(worker, place, request);
  if (gathering.staged()) {
    work(gathering, static_cast<int64_t>(place.position));
  } else {
    const uint32_t count = static_cast<uint32_t>(tasks);
    for (uint32_t task; (task = gathering.tasks().Claim()) < count;) {
      work(gathering, static_cast<int64_t>(task));
      gathering.tasks().Done(count);
    }
    gathering.tasks().WaitForAll(count);
  }
  ++worker->counts[{request.kind, Ranks(groups.begin(), groups.end()), place.group->size(),
                    out_bytes}];
}

int64_t BytesOf(const Dims& shape, const Request& request) {
  return Product(shape.data(), shape.data() + request.ndim) * ElementBytes(request.dtype);
}

// ---- the collectives -----------------------------------------------------------------------------

void AllReduce(TensorView x, Shape groups, int64_t group_size, int64_t op, TensorView out) {
  Guarded(kAllReduce, [&](Worker* worker) {
    const Request request = MakeRequest(kAllReduce, op, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const Reducer& reducer = ReducerOf(request, op);
    CheckResult(request, out, request.shape);
    const int64_t count = Elements(request), size = ElementBytes(request.dtype);
    const int64_t tile = std::max(kTileBytes / size, count / kMostTasks + 1);
    const auto work = [&](const Gathering& gathering, int64_t task) {
      const ReduceOp reduction = static_cast<ReduceOp>(op);
      if (gathering.staged()) {
        reducer.reduce(reduction, gathering.sources(), 0, count, request.target);
        return;
      }
      // A task reduces one tile, piece by piece, for all members.
      alignas(64) char total[kTileBytes];
      const int64_t piece = kTileBytes / size, stop = std::min(count, (task + 1) * tile);
      for (int64_t begin = task * tile; begin < stop; begin += piece) {
        const int64_t end = std::min(stop, begin + piece);
        reducer.reduce(reduction, gathering.sources(), begin, end, total);
        for (int64_t member = 0; member < group_size; ++member) {
          Copy(gathering.target(member) + begin * size, total, (end - begin) * size);
        }
      }
    };
    Exchange(worker, place, request, groups, Bytes(request), (count + tile - 1) / tile, work);
  });
}

void AllGather(TensorView x, Shape groups, int64_t group_size, int64_t dim, TensorView out) {
  Guarded(kAllGather, [&](Worker* worker) {
    const Request request = MakeRequest(kAllGather, dim, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const int64_t axis = Dim(request, dim);
    Dims result = request.shape;
    result[axis] *= group_size;
    CheckResult(request, out, result);
    const auto work = [&](const Gathering& gathering, int64_t member) {
      Dims at{};
      for (const char* source : gathering.sources()) {
        CopyBox(gathering.target(member), result, at, source, request.shape, Dims{}, request.shape,
                request.ndim, ElementBytes(request.dtype));
        at[axis] += request.shape[axis];
      }
    };
    Exchange(worker, place, request, groups, BytesOf(result, request), group_size, work);
  });
}

void ReduceScatter(TensorView x, Shape groups, int64_t group_size, int64_t dim, int64_t op,
                   TensorView out) {
  Guarded(kReduceScatter, [&](Worker* worker) {
    const Request request = MakeRequest(kReduceScatter, dim, op, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const Reducer& reducer = ReducerOf(request, op);
    const int64_t axis = Dim(request, dim);
    Dims result = request.shape;
    Divide(request, &result, axis, group_size);
    CheckResult(request, out, result);
    const auto work = [&](const Gathering& gathering, int64_t member) {
      const int64_t* shape = result.data();
      const int64_t outer = Product(shape, shape + axis);
      const int64_t part = Product(shape + axis, shape + request.ndim);
      char* target = gathering.target(member);
      for (int64_t row = 0; row < outer; ++row) {
        const int64_t begin = (row * group_size + member) * part;
        reducer.reduce(static_cast<ReduceOp>(op), gathering.sources(), begin, begin + part, target);
        target += part * ElementBytes(request.dtype);
      }
    };
    Exchange(worker, place, request, groups, BytesOf(result, request), group_size, work);
  });
}

void AllToAll(TensorView x, Shape groups, int64_t group_size, int64_t gather_dim,
              int64_t split_dim, TensorView out) {
  Guarded(kAllToAll, [&](Worker* worker) {
    const Request request = MakeRequest(kAllToAll, gather_dim, split_dim, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const int64_t gathered = Dim(request, gather_dim), split = Dim(request, split_dim);
    Dims part = request.shape;
    Divide(request, &part, split, group_size);
    Dims result = part;
    result[gathered] *= group_size;
    CheckResult(request, out, result);
    const auto work = [&](const Gathering& gathering, int64_t member) {
      Dims from{}, to{};
      from[split] = part[split] * member;
      for (const char* source : gathering.sources()) {
        CopyBox(gathering.target(member), result, to, source, request.shape, from, part, request.ndim,
                ElementBytes(request.dtype));
        to[gathered] += part[gathered];
      }
    };
    Exchange(worker, place, request, groups, BytesOf(result, request), group_size, work);
  });
}

void CollectivePermute(TensorView x, Shape groups, int64_t group_size, int64_t shift,
                       TensorView out) {
  Guarded(kPermute, [&](Worker* worker) {
    const Request request = MakeRequest(kPermute, shift, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    CheckResult(request, out, request.shape);
    const int64_t bytes = Bytes(request);
    const auto work = [&](const Gathering& gathering, int64_t member) {
      const int64_t from = member - shift;
      if (from >= 0 && from < group_size) {
        Copy(gathering.target(member), gathering.sources()[from], bytes);
      } else if (bytes > 0) {
        std::memset(gathering.target(member), 0, bytes);
      }
    };
    Exchange(worker, place, request, groups, bytes, group_size, work);
  });
}

// ---- without traffic -----------------------------------------------------------------------------

void LocalSlice(TensorView x, Shape groups, int64_t group_size, int64_t dim, TensorView out) {
  Guarded(kLocalSlice, [&](Worker* worker) {
    const Request request = MakeRequest(kLocalSlice, dim, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const int64_t axis = Dim(request, dim);
    Dims part = request.shape, at{};
    Divide(request, &part, axis, group_size);
    CheckResult(request, out, part);
    at[axis] = part[axis] * static_cast<int64_t>(place.position);
    CopyBox(request.target, part, Dims{}, request.source, request.shape, at, part, request.ndim,
            ElementBytes(request.dtype));
  });
}

void Partial(TensorView x, Shape groups, int64_t group_size, int64_t op, TensorView out) {
  Guarded(kPartial, [&](Worker* worker) {
    const Request request = MakeRequest(kPartial, op, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const Reducer& reducer = ReducerOf(request, op);
    CheckResult(request, out, request.shape);
    if (place.position > 0) {
      reducer.fill_neutral(static_cast<ReduceOp>(op), Elements(request), request.target);
    } else if (request.target != request.source) {
      Copy(request.target, request.source, Bytes(request));
    }
  });
}

void AxisIndex(Shape groups, int64_t group_size, TensorView out) {
  Guarded(kAxisIndex, [&](Worker* worker) {
    Request request = MakeRequest(kAxisIndex, 0, 0, out, out);
    request.dtype = DLDataType{kDLInt, 64, 1};
    request.ndim = 0;
    CheckResult(request, out, Dims{});
    const int64_t position = static_cast<int64_t>(
        FindMembership(worker, request, groups, group_size).position);
    std::memcpy(request.target, &position, sizeof(position));
  });
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_all_reduce, tvm_distir::AllReduce);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_all_gather, tvm_distir::AllGather);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_reduce_scatter, tvm_distir::ReduceScatter);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_all_to_all, tvm_distir::AllToAll);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_collective_permute, tvm_distir::CollectivePermute);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_local_slice, tvm_distir::LocalSlice);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_partial, tvm_distir::Partial);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_axis_index, tvm_distir::AxisIndex);

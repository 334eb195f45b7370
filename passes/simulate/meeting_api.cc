// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What Python calls for activities that meet; see tvm_distir/performance/event_loop/contention.py.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "ffi/array.h"
#include "simulate/meeting.h"

namespace tvm_distir {
namespace simulate {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Shape;
using tvm::ffi::TensorView;

// Floats come as the integers of the same bits.
Floats Real(const TensorView& tensor, const char* name) {
  const Ints bits = Listed(tensor, name);
  Floats out(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&out[i], &bits[i], sizeof(double));
  return out;
}

int64_t Size(const Ints& of) { return static_cast<int64_t>(of.size()); }

void CheckBegin(const Ints& begin, int64_t count, int64_t end, const char* name) {
  bool rises = Size(begin) == count + 1;
  for (size_t i = 1; rises && i < begin.size(); ++i) rises = begin[i - 1] <= begin[i];
  if (!rises || begin.back() != end) TVM_FFI_THROW(ValueError) << name << " does not fit";
}

void CheckRange(const Ints& of, int64_t low, int64_t high, const char* name) {
  for (const int64_t one : of) {
    if (one < low || one >= high) TVM_FFI_THROW(ValueError) << name << " has " << one;
  }
}

// Arrays in the order of the fields of Activities, then those of Loads.
Array<tvm::ffi::Function> Contention(
    TensorView matrix, TensorView matrix_begin, TensorView matrix_ports, TensorView kind,
    TensorView group, TensorView rank, TensorView spent, TensorView in_begin, TensorView ins,
    TensorView out_begin, TensorView capacity, TensorView piece_begin, TensorView until,
    TensorView speed, TensorView load_begin, TensorView link, TensorView load, TensorView slows,
    double beside) {
  const Activities a{Listed(matrix, "matrix"),
                     Listed(matrix_begin, "matrix_begin"),
                     Listed(matrix_ports, "matrix_ports"),
                     Listed(kind, "kind"),
                     Listed(group, "group"),
                     Listed(rank, "rank"),
                     Listed(spent, "spent"),
                     Listed(in_begin, "in_begin"),
                     Listed(ins, "ins"),
                     Listed(out_begin, "out_begin")};
  const Loads l{Real(capacity, "capacity"),
                Listed(piece_begin, "piece_begin"),
                Real(until, "until"),
                Real(speed, "speed"),
                Listed(load_begin, "load_begin"),
                Listed(link, "link"),
                Real(load, "load"),
                Listed(slows, "slows"),
                beside};
  const int64_t count = Size(a.kind), classes = Size(l.piece_begin) - 1;
  const int64_t pieces = static_cast<int64_t>(l.until.size());
  if (a.out_begin.empty() || a.out_begin.front() != 2) {
    TVM_FFI_THROW(ValueError) << "out_begin must begin with 2";
  }
  CheckBegin(a.in_begin, count, Size(a.ins), "in_begin");
  CheckBegin(a.out_begin, count, a.out_begin.back(), "out_begin");
  CheckBegin(l.piece_begin, classes, pieces, "piece_begin");
  CheckBegin(l.load_begin, pieces, Size(l.link), "load_begin");
  CheckRange(a.ins, 0, a.out_begin.back(), "ins");
  CheckRange(a.kind, kJoin, Size(a.matrix_begin), "kind");
  CheckRange(a.group, 0, classes, "group");
  CheckRange(l.link, 0, static_cast<int64_t>(l.capacity.size()), "link");
  if (l.load.size() != l.link.size() || l.speed.size() != l.until.size() ||
      Size(l.slows) != 2 * classes || Size(a.group) != count || Size(a.rank) != count ||
      Size(a.spent) != count) {
    TVM_FFI_THROW(ValueError) << "arrays of activities or loads differ in length";
  }
  const auto met = std::make_shared<Met>(Meet(a, l));
  using F = tvm::ffi::Function;
  return {F::FromTyped([met]() { return Shape({Size(met->time), Size(met->clock)}); }),
          F::FromTyped([met](TensorView time, TensorView clock) {
            Give(met->time, time, "outcome");
            Give(met->clock, clock, "outcome");
          })};
}

}  // namespace
}  // namespace simulate
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(contention, tvm_distir::simulate::Contention);

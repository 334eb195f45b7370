// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/box.h"

#include <algorithm>
#include <cstring>

namespace tvm_distir {
namespace {

// Walks a box in its row-major order by runs of elements that lie together in the tensor.
class Runs {
 public:
  // Starts at element `begin` of the box.
  Runs(const Box& box, int64_t begin) : box_(box), outer_(box.ndim) {
    bool whole = true;
    for (int64_t i = box.ndim - 1, stride = 1; i >= 0; --i) {
      stride_[i] = stride;
      offset_ += box.at[i] * stride;
      stride *= box.shape[i];
      if (whole) {
        run_ *= box.extent[i];
        outer_ = i;
        whole = box.extent[i] == box.shape[i];
      }
    }
    inside_ = begin % run_;
    for (int64_t i = outer_ - 1, rest = begin / run_; i >= 0; --i) {
      index_[i] = rest % box.extent[i];
      rest /= box.extent[i];
      offset_ += index_[i] * stride_[i];
    }
  }

  // Where the next elements lie, and how many lie there together.
  int64_t offset() const { return offset_ + inside_; }
  int64_t count() const { return run_ - inside_; }

  void Advance(int64_t elements) {
    inside_ += elements;
    if (inside_ < run_) return;
    inside_ = 0;
    for (int64_t i = outer_ - 1; i >= 0; --i) {
      offset_ += stride_[i];
      if (++index_[i] < box_.extent[i]) return;
      offset_ -= box_.extent[i] * stride_[i];
      index_[i] = 0;
    }
  }

 private:
  const Box& box_;
  int64_t outer_;  // the dims before it are walked, those from it on make a run
  int64_t run_ = 1, offset_ = 0, inside_ = 0;
  Dims stride_{}, index_{};
};

}  // namespace

int64_t Box::elements() const {
  int64_t count = 1;
  for (int64_t i = 0; i < ndim; ++i) count *= extent[i];
  return count;
}

void Pack(char* target, const char* tensor, const Box& box, int64_t begin, int64_t end) {
  if (begin >= end) return;
  for (Runs runs(box, begin); begin < end;) {
    const int64_t count = std::min(runs.count(), end - begin);
    std::memcpy(target, tensor + runs.offset() * box.element_bytes, count * box.element_bytes);
    target += count * box.element_bytes;
    begin += count;
    runs.Advance(count);
  }
}

void Unpack(char* tensor, const Box& box, const char* source, int64_t begin, int64_t end) {
  if (begin >= end) return;
  for (Runs runs(box, begin); begin < end;) {
    const int64_t count = std::min(runs.count(), end - begin);
    std::memcpy(tensor + runs.offset() * box.element_bytes, source, count * box.element_bytes);
    source += count * box.element_bytes;
    begin += count;
    runs.Advance(count);
  }
}

void CopyBox(char* target, const Box& to, const char* source, const Box& from) {
  const int64_t end = from.elements();
  if (end == 0) return;
  Runs read(from, 0), write(to, 0);
  for (int64_t begin = 0; begin < end;) {
    const int64_t count = std::min({read.count(), write.count(), end - begin});
    std::memcpy(target + write.offset() * to.element_bytes,
                source + read.offset() * from.element_bytes, count * from.element_bytes);
    begin += count;
    read.Advance(count);
    write.Advance(count);
  }
}

}  // namespace tvm_distir

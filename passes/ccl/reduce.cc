// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tvm_distir {
namespace {

// Elements reduced before the next term is read: the running total stays in the nearest cache.
constexpr int64_t kBlock = 2048;

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "only between types of one size");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// ---- element types: how they are stored, and the type in which they are reduced ------------

template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static T Widen(T value) { return value; }
  static T Narrow(T value) { return value; }
};

struct Bool : Plain<uint8_t> {};

struct Half {
  using Stored = uint16_t;
  using Wide = float;

  static float Widen(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t rest = static_cast<uint32_t>(half & 0x7fffu) << 13;
    // The exponent's bias grows by 112, for subnormal numbers too.
    const uint32_t finite = BitCast<uint32_t>(BitCast<float>(rest) * 0x1p112f);
    const uint32_t special = rest | 0x7f800000u;
    return BitCast<float>(sign | (rest >= 0x0f800000u ? special : finite));
  }

  // To nearest, ties to even.
  static uint16_t Narrow(float value) {
    const uint32_t bits = BitCast<uint32_t>(value);
    const uint32_t rest = bits & 0x7fffffffu;
    const uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    // Adding 0.5 leaves the subnormal half's digits, rounded, at the end of the sum.
    const uint32_t tiny = BitCast<uint32_t>(BitCast<float>(rest) + 0.5f) - 0x3f000000u;
    const uint32_t nan = 0x7e00u | ((rest & 0x007fffffu) >> 13);
    const uint32_t special = rest > 0x7f800000u ? nan : 0x7c00u;
    const uint32_t small = rest < 0x38800000u ? tiny : normal;
    return static_cast<uint16_t>((bits >> 16 & 0x8000u) | (rest >= 0x47800000u ? special : small));
  }
};

struct BFloat {
  using Stored = uint16_t;
  using Wide = float;

  static float Widen(uint16_t value) { return BitCast<float>(static_cast<uint32_t>(value) << 16); }

  // To nearest, ties to even.
  static uint16_t Narrow(float value) {
    const uint32_t bits = BitCast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16 & 0x8000u) | 0x7fc0u;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
};

// ---- one step of a reduction ------------------------------------------------------------------

template <typename Type, ReduceOp op>
typename Type::Wide Step(typename Type::Wide total, typename Type::Wide term) {
  using T = typename Type::Wide;
  if constexpr (std::is_same_v<Type, Bool>) {
    if constexpr (op == kSum || op == kMax) return (total | term) != 0;
    return (total != 0) & (term != 0);
  } else if constexpr (op == kMin || op == kMax) {
    bool keep = op == kMin ? total < term : total > term;
    if constexpr (std::is_floating_point_v<T>) keep = keep | (total != total);  // NaN stays
    return keep ? total : term;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned and at least as wide as int: no promotion to a type that may overflow.
    using U = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
    const U a = static_cast<U>(total), b = static_cast<U>(term);
    return static_cast<T>(op == kProd ? a * b : a + b);
  } else {
    return op == kProd ? total * term : total + term;
  }
}

template <typename Type, ReduceOp op>
void ReduceWith(const std::vector<const char*>& terms, int64_t begin, int64_t end, char* out) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  Wide total[kBlock];
  Stored* result = reinterpret_cast<Stored*>(out);
  for (int64_t block = begin; block < end; block += kBlock, result += kBlock) {
    const int64_t count = std::min(kBlock, end - block);
    const Stored* first = reinterpret_cast<const Stored*>(terms[0]) + block;
    for (int64_t i = 0; i < count; ++i) total[i] = Type::Widen(first[i]);
    for (size_t k = 1; k < terms.size(); ++k) {
      const Stored* term = reinterpret_cast<const Stored*>(terms[k]) + block;
      for (int64_t i = 0; i < count; ++i) {
        total[i] = Step<Type, op>(total[i], Type::Widen(term[i]));
      }
    }
    for (int64_t i = 0; i < count; ++i) result[i] = Type::Narrow(total[i]);
  }
}

template <typename Type>
void Reduce(ReduceOp op, const std::vector<const char*>& terms, int64_t begin, int64_t end,
            char* out) {
  switch (op) {
    case kSum:
      return ReduceWith<Type, kSum>(terms, begin, end, out);
    case kProd:
      return ReduceWith<Type, kProd>(terms, begin, end, out);
    case kMin:
      return ReduceWith<Type, kMin>(terms, begin, end, out);
    default:
      return ReduceWith<Type, kMax>(terms, begin, end, out);
  }
}

template <typename Type>
typename Type::Wide Neutral(ReduceOp op) {
  using T = typename Type::Wide;
  using Limits = std::numeric_limits<T>;
  if (op == kSum || op == kProd) return static_cast<T>(op == kProd);
  if constexpr (std::is_same_v<Type, Bool>) return op == kMin;
  if constexpr (Limits::has_infinity) return op == kMin ? Limits::infinity() : -Limits::infinity();
  return op == kMin ? Limits::max() : Limits::lowest();
}

template <typename Type>
void FillNeutral(ReduceOp op, int64_t count, char* out) {
  std::fill_n(reinterpret_cast<typename Type::Stored*>(out), count,
              Type::Narrow(Neutral<Type>(op)));
}

template <typename Type>
const Reducer* Of() {
  static constexpr Reducer reducer{Reduce<Type>, FillNeutral<Type>};
  return &reducer;
}

}  // namespace

const Reducer* FindReducer(DLDataType dtype) {
  if (dtype.lanes != 1) return nullptr;
  switch (dtype.code << 8 | dtype.bits) {
    case kDLFloat << 8 | 16:
      return Of<Half>();
    case kDLFloat << 8 | 32:
      return Of<Plain<float>>();
    case kDLFloat << 8 | 64:
      return Of<Plain<double>>();
    case kDLBfloat << 8 | 16:
      return Of<BFloat>();
    case kDLInt << 8 | 8:
      return Of<Plain<int8_t>>();
    case kDLInt << 8 | 16:
      return Of<Plain<int16_t>>();
    case kDLInt << 8 | 32:
      return Of<Plain<int32_t>>();
    case kDLInt << 8 | 64:
      return Of<Plain<int64_t>>();
    case kDLUInt << 8 | 8:
      return Of<Plain<uint8_t>>();
    case kDLUInt << 8 | 16:
      return Of<Plain<uint16_t>>();
    case kDLUInt << 8 | 32:
      return Of<Plain<uint32_t>>();
    case kDLUInt << 8 | 64:
      return Of<Plain<uint64_t>>();
    case kDLUInt << 8 | 1:
    case kDLBool << 8 | 8:
      return Of<Bool>();
    default:
      return nullptr;
  }
}

}  // namespace tvm_distir

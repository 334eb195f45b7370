// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Reads the Relax functions of a module in one sweep, for passes that treat like bindings once:
// what each binding is, which variables it reads, which bindings are alike in all but these
// variables, and which variables have equal types.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ffi/numbers.h"

namespace tvm_distir {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::ObjectRef;
using tvm::ffi::String;

constexpr int64_t kNone = -1;

// What a binding binds; tvm_distir/core/rewriting/native/function_index.py has the same numbers.
enum Kind : int64_t {
  kOpCall,
  kFunctionCall,
  kOtherCall,
  kTuple,
  kItem,
  kAlias,
  kIf,
  kFunction,
  kCast,
  kOther,
};

// What a part of the description of a binding stands for.
enum Part : int64_t { kVariablePart, kTuplePart, kConstantPart, kLiteralPart };

// Getters of the fields read here, found once.
struct Fields {
  FieldGetter params{"relax.expr.Function", "params"}, body{"relax.expr.Function", "body"};
  FieldGetter blocks{"relax.expr.SeqExpr", "blocks"}, result{"relax.expr.SeqExpr", "body"};
  FieldGetter bindings{"relax.expr.BindingBlock", "bindings"};
  FieldGetter var{"relax.expr.Binding", "var"}, value{"relax.expr.VarBinding", "value"};
  FieldGetter cast_value{"relax.expr.MatchCast", "value"};
  FieldGetter type{"ir.Expr", "ty"}, fields{"ir.Tuple", "fields"}, name{"ir.Var", "name"};
  FieldGetter whole{"ir.TupleGetItem", "tuple_value"}, index{"ir.TupleGetItem", "index"};
  FieldGetter op{"ir.Call", "op"}, args{"ir.Call", "args"};
  FieldGetter attrs{"ir.Call", "attrs"}, type_args{"ir.Call", "ty_args"};
  int32_t function = TypeIndex("relax.expr.Function");
  int32_t sequence = TypeIndex("relax.expr.SeqExpr"), cast = TypeIndex("relax.expr.MatchCast");
  int32_t call = TypeIndex("ir.Call"), op_node = TypeIndex("ir.Op");
  int32_t tuple = TypeIndex("ir.Tuple"), item = TypeIndex("ir.TupleGetItem");
  int32_t constant = TypeIndex("ir.GenericConst"), global = TypeIndex("ir.GlobalVar");
  int32_t branch = TypeIndex("relax.expr.If");
  int32_t variable = TypeIndex("ir.Var"), hidden = TypeIndex("relax.expr.DataflowVar");

  static const Fields& Get() {
    static const Fields fields;
    return fields;
  }
};

// What the functions of a module share. A class with a function in it is of this module only.
struct Shared {
  Numbers& numbers;
  std::unordered_map<Ints, int64_t, HashInts> own;

  int64_t Alike(const Ints& key, bool is_own) {
    if (!is_own) return numbers.Alike(key);
    const auto found = own.find(key);
    if (found != own.end()) return found->second;
    return own.emplace(key, numbers.Next()).first->second;
  }
};

class Reader {
 public:
  explicit Reader(Shared* shared) : shared_(*shared) {}

  Array<Any> Run(const ObjectRef& function) {
    if (function->type_index() != fields_.function) {
      TVM_FFI_THROW(TypeError) << "a relax.Function is needed, not a " << function->GetTypeKey();
    }
    const Array<Any> params = fields_.params(function).cast<Array<Any>>();
    const Any body = fields_.body(function);
    if (Node(body) == nullptr || Node(body)->type_index() != fields_.sequence) {
      TVM_FFI_THROW(TypeError) << "the body of the function is no sequence of bindings";
    }
    const Array<Any> blocks = fields_.blocks(Node(body)).cast<Array<Any>>();
    size_t count = 0;
    for (const Any& block : blocks) {
      count += fields_.bindings(Node(block)).cast<Array<Any>>().size();
    }
    Reserve(params.size(), count);
    for (const Any& param : params) AddVariable(param);
    for (const Any& block : blocks) {
      for (const Any& binding : fields_.bindings(Node(block)).cast<Array<Any>>()) {
        const bool is_cast = Node(binding)->type_index() == fields_.cast;
        const Any value = (is_cast ? fields_.cast_value : fields_.value)(Node(binding));
        const Any variable = fields_.var(Node(binding));
        AddVariable(variable);
        AddValue(value, is_cast);
        bindings_.push_back(binding);
        values_.push_back(value);
      }
    }
    Ints unused;
    const size_t before = reads_.size();
    AddArgument(fields_.result(Node(body)), &unused);
    const Ints result(reads_.begin() + before, reads_.end());
    reads_.resize(before);
    return {Array<Any>(bindings_.begin(), bindings_.end()),
            Array<Any>(variables_.begin(), variables_.end()),
            Array<Any>(values_.begin(), values_.end()),
            String(names_),
            AsBytes(kinds_),
            AsBytes(like_),
            AsBytes(begin_),
            AsBytes(reads_),
            AsBytes(types_),
            AsBytes(result)};
  }

 private:
  void Reserve(size_t params, size_t bindings) {
    numbers_.reserve(params + bindings);
    variables_.reserve(params + bindings);
    types_.reserve(params + bindings);
    for (std::vector<Any>* list : {&bindings_, &values_}) list->reserve(bindings);
    for (Ints* list : {&kinds_, &like_, &begin_}) list->reserve(bindings + 1);
    reads_.reserve(3 * bindings);
    shared_.numbers.Reserve(params + 2 * bindings);
  }

  void AddVariable(const Any& variable) {
    numbers_.emplace(Node(variable), static_cast<int64_t>(variables_.size()));
    variables_.push_back(variable);
    const String name = fields_.name(Node(variable)).cast<String>();
    names_.append(name.data(), name.size()).push_back('\0');
    types_.push_back(shared_.numbers.Of(fields_.type(Node(variable))));
  }

  void AddValue(const Any& value, bool is_cast) {
    const Object* node = Node(value);
    is_own_ = false;
    const int64_t kind = is_cast ? kCast : KindOf(node);
    Ints& key = key_;
    key.assign({kind, types_.back()});
    bool is_plain = node != nullptr && kind != kIf && kind != kFunction;
    if (kind == kOpCall || kind == kFunctionCall || kind == kOtherCall) {
      is_plain = AddCall(node, &key);
    } else if (kind == kItem) {
      key.push_back(fields_.index(node).cast<int64_t>());
      is_plain = AddArgument(fields_.whole(node), &key);
    } else if (is_plain) {
      is_plain = AddArgument(value, &key);
    }
    kinds_.push_back(kind);
    like_.push_back(is_plain && kind != kCast ? shared_.Alike(key, is_own_) : kNone);
    begin_.push_back(static_cast<int64_t>(reads_.size()));
  }

  int64_t KindOf(const Object* node) const {
    if (node == nullptr) return kOther;
    const int32_t type = node->type_index();
    if (type == fields_.call) {
      const Any op = fields_.op(node);
      const int32_t callee = Node(op) == nullptr ? 0 : Node(op)->type_index();
      return callee == fields_.op_node ? kOpCall
             : callee == fields_.global ? kFunctionCall : kOtherCall;
    }
    if (type == fields_.tuple) return kTuple;
    if (type == fields_.item) return kItem;
    if (type == fields_.variable || type == fields_.hidden) return kAlias;
    if (type == fields_.branch) return kIf;
    return type == fields_.function ? kFunction : kOther;
  }

  bool AddCall(const Object* call, Ints* key) {
    const Any op = fields_.op(call);
    is_own_ = (*key)[0] != kOpCall;  // ops are never let go, other callees are
    key->push_back(reinterpret_cast<int64_t>(Node(op)));
    key->push_back(shared_.numbers.Of(fields_.attrs(call)));
    key->push_back(shared_.numbers.Of(fields_.type_args(call)));
    bool is_plain = true;
    for (const Any& arg : fields_.args(call).cast<Array<Any>>()) {
      is_plain = AddArgument(arg, key) && is_plain;
    }
    return is_plain;
  }

  // Notes what an argument reads, and what it is but for that; false for what cannot be told.
  bool AddArgument(const Any& arg, Ints* key) {
    const Object* node = Node(arg);
    if (node == nullptr) {
      key->insert(key->end(), {kLiteralPart, shared_.numbers.Of(arg)});
      return true;
    }
    const int32_t type = node->type_index();
    const auto variable = numbers_.find(node);
    if (variable != numbers_.end()) {
      key->insert(key->end(), {kVariablePart, types_[variable->second]});
      reads_.push_back(variable->second);
      return true;
    }
    if (type == fields_.tuple) {
      const Array<Any> fields = fields_.fields(node).cast<Array<Any>>();
      key->insert(key->end(), {kTuplePart, static_cast<int64_t>(fields.size())});
      bool is_plain = true;
      for (const Any& field : fields) is_plain = AddArgument(field, key) && is_plain;
      return is_plain;
    }
    if (type == fields_.item) {  // in a result
      AddArgument(fields_.whole(node), key);
      return false;
    }
    if (type == fields_.constant) {
      key->insert(key->end(), {kConstantPart, shared_.numbers.Of(fields_.type(node))});
      reads_.push_back(kNone);
      return true;
    }
    if (type == fields_.global) {
      is_own_ = true;
      key->insert(key->end(), {kLiteralPart, kNone, reinterpret_cast<int64_t>(node)});
      return true;
    }
    const bool is_open = type == fields_.variable || type == fields_.hidden ||
                         type == fields_.call || type == fields_.branch ||
                         type == fields_.function;
    if (!is_open) key->insert(key->end(), {kLiteralPart, shared_.numbers.Of(arg)});
    return !is_open;
  }

  const Fields& fields_ = Fields::Get();
  Shared& shared_;
  std::vector<Any> bindings_, variables_, values_;
  std::string names_;  // a zero behind each
  Ints kinds_, like_, reads_, types_;
  Ints begin_{0};
  bool is_own_ = false;  // whether the value read mentions what is of its module only
  Ints key_;  // of the present binding
  std::unordered_map<const Object*, int64_t> numbers_;
};

Array<Any> Read(const Array<ObjectRef>& functions) {
  const HeldNumbers held;
  Shared shared{held.numbers, {}};
  Array<Any> found;
  for (const ObjectRef& function : functions) found.push_back(Reader(&shared).Run(function));
  return found;
}

// Hands the elements of an array to a function as its arguments: Python gets many at once so in a
// third of the time that it takes to ask for one after the other.
void Spread(const Array<Any>& array, const Function& take) {
  const std::vector<AnyView> arguments(array.begin(), array.end());
  Any nothing;
  take.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &nothing);
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(spread, tvm_distir::Spread);

TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_functions, tvm_distir::Read);

#pragma once
// The cases of tests/golden/ops (written by tools/make_op_goldens.py), as tensors of any scalar.
#include <cstdlib>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "ops/evaluate.h"

namespace tokamak::testing {

inline const Value& load_cases() {
  static const Value cases = parse_json(read_text_file(TK_OP_GOLDENS), "cases.json");
  return cases;
}

template <class S>
Tensor<S> to_tensor(const Value& v) {
  Tensor<S> t;
  auto floats = [](const Value& list) {
    std::vector<S> out;
    for (const Value& x : list.as_array())  // "-inf", "nan": JSON has no numbers for them
      out.push_back(static_cast<S>(x.is_string() ? std::strtod(x.as_string().c_str(), nullptr)
                                                 : x.as_double()));
    return out;
  };
  auto ints = [](const Value& list) {
    std::vector<int32_t> out;
    for (const Value& x : list.as_array()) out.push_back(static_cast<int32_t>(x.as_int()));
    return out;
  };
  auto dims = [&](const Value& list) {
    std::vector<int64_t> out;
    for (const Value& x : list.as_array()) out.push_back(x.as_int());
    return out;
  };
  if (const Value* state = v.find("state")) {
    for (const Value& p : state->as_array())
      t.planes.push_back({p.at("name").as_string(), dims(p.at("dims")), floats(p.at("f"))});
  } else if (const Value* view = v.find("view")) {
    t.table = ints(view->at("table"));
    t.stride = view->at("stride").as_int();
    t.block_size = view->at("block_size").as_int();
  } else {
    t.dims = dims(v.at("dims"));
    if (v.has("i")) {
      t.i = ints(v.at("i"));
      t.dtype = DType::kI32;
    } else {
      t.f = floats(v.at("f"));
    }
  }
  return t;
}

}  // namespace tokamak::testing

#pragma once
// The fields of config.json, and the readers that are not part of hf_config.cc.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/value.h"
#include "compile/import/families.h"

namespace tokamak {

// config.json fields under any of several names; null counts as absent. Wrong types fail, naming
// the field.
class Fields {
 public:
  Fields(const Value& json, std::string_view where) : json_(json), where_(where) {}

  const Value* find(std::initializer_list<std::string_view> names) const {
    for (std::string_view name : names)
      if (const Value* v = json_.find(name); v && !v->is_null()) return v;
    return nullptr;
  }
  int64_t integer(std::initializer_list<std::string_view> names, int64_t fallback) const {
    const Value* v = find(names);
    if (v && !v->is_int()) wrong(*names.begin(), "an integer");
    return v ? v->as_int() : fallback;
  }
  // An integer, or a list of equal ones: a value per layer.
  int64_t uniform(std::initializer_list<std::string_view> names, int64_t fallback) const {
    const Value* v = find(names);
    if (!v || !v->is_array()) return integer(names, fallback);
    for (const Value& item : v->as_array())
      if (!item.is_int() || item.as_int() != v->as_array()[0].as_int())
        fail(ErrorCode::kUnsupported, "{}: {} differs from layer to layer", where_, *names.begin());
    return v->as_array().empty() ? fallback : v->as_array()[0].as_int();
  }
  int64_t required(std::initializer_list<std::string_view> names) const {
    if (!find(names))
      fail(ErrorCode::kCorrupt, "{}: config.json has no {}", where_, *names.begin());
    return integer(names, 0);
  }
  // Small enough for products with it.
  int64_t hidden_size(std::initializer_list<std::string_view> names) const {
    int64_t n = required(names);
    if (n < 1 || n > 1 << 20) wrong(*names.begin(), "between 1 and 1048576");
    return n;
  }
  // GGUF stores such numbers as f32; rounding here as well makes both formats describe the same
  // model.
  double number(std::initializer_list<std::string_view> names, double fallback) const {
    const Value* v = find(names);
    if (v && !v->is_number()) wrong(*names.begin(), "a number");
    return v ? static_cast<double>(static_cast<float>(v->as_double())) : fallback;
  }
  bool boolean(std::string_view name, bool fallback) const {
    const Value* v = find({name});
    if (v && !v->is_bool()) wrong(name, "true or false");
    return v ? v->as_bool() : fallback;
  }
  std::string text(std::initializer_list<std::string_view> names, std::string_view fallback) const {
    const Value* v = find(names);
    if (v && !v->is_string()) wrong(*names.begin(), "a string");
    return v ? v->as_string() : std::string(fallback);
  }
  std::vector<double> numbers(std::string_view name) const {
    std::vector<double> out;
    const Value* v = find({name});
    if (!v) return out;
    if (!v->is_array()) wrong(name, "a list of numbers");
    for (const Value& item : v->as_array()) {
      if (!item.is_number()) wrong(name, "a list of numbers");
      out.push_back(static_cast<double>(static_cast<float>(item.as_double())));
    }
    return out;
  }
  // A size that was computed with numbers of the file.
  int64_t whole(std::string_view name, double value) const {
    constexpr double kMost = 1 << 30;
    if (!(value >= 0 && value <= kMost)) wrong(name, "a number that gives a possible size");
    return static_cast<int64_t>(value);
  }
  // layer_types, one of `known` for each layer; empty where the file has none.
  std::vector<std::string> layer_types(int64_t layers,
                                       std::initializer_list<std::string_view> known) const {
    std::vector<std::string> out;
    const Value* types = find({"layer_types"});
    if (!types) return out;
    if (!types->is_array() || static_cast<int64_t>(types->size()) != layers)
      wrong("layer_types", "a list with one entry per layer");
    for (const Value& t : types->as_array()) {
      out.push_back(t.is_string() ? t.as_string() : "");
      if (std::find(known.begin(), known.end(), out.back()) == known.end())
        fail(ErrorCode::kUnsupported, "{}: layer type \"{}\" is not supported", where_, out.back());
    }
    return out;
  }
  [[noreturn]] void wrong(std::string_view name, std::string_view expected) const {
    fail(ErrorCode::kCorrupt, "{}: {} in config.json is not {}", where_, name, expected);
  }
  bool is_null(std::string_view name) const {  // present and null: disabled
    const Value* v = json_.find(name);
    return v && v->is_null();
  }
  std::string_view where() const { return where_; }

 private:
  const Value& json_;
  std::string_view where_;
};

// Defaults for fields missing in config.json, as in transformers.
struct Usual {
  std::string_view architecture;
  int64_t kv_heads;  // 0: as many as heads
  int64_t head_dim;  // 0: hidden size / heads
  int64_t context;
  int64_t window;  // 0: none
  double eps = 1e-6;
  double theta = 10000;
};
const Usual& usual_of(const ModelConfig& config);

// The configuration with the usual names, for families whose config.json has another form.
Value with_usual_names(const Value& json, std::string_view where);

// Rotary embeddings; `config` has its sizes.
void read_rope(const Fields& fields, double usual_theta, ModelConfig& config);

// Layers with a recurrent state: of Mamba-2, of Qwen3-Next, and of models with attention beside
// Mamba-2 or convolutions.
void read_recurrent(const Fields& fields, ModelConfig& config);
void read_gated_delta(const Fields& fields, ModelConfig& config);
void read_hybrid(const Fields& fields, ModelConfig& config);
bool has_expert_layers(const Fields& fields);
bool is_expert_layer(const Fields& fields, size_t layer);
int64_t count_layers(const Fields& fields);
int64_t hybrid_ffn(const Fields& fields, const ModelConfig& config);

// What only some families have: scales, layers without positions, experts. `config` has its sizes
// and windows.
void read_variants(const Fields& fields, const Family& family, ModelConfig& config);

}  // namespace tokamak

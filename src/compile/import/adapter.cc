#include "compile/import/adapter.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/import/gguf_file.h"
#include "compile/import/hf_weights.h"
#include "compile/import/safetensors_file.h"
#include "tensor/block_formats.h"
#include "tensor/recipe_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostRank = 4096;

// One adapted module while its tensors are collected.
struct AdapterModule {
  const TensorView *a = nullptr, *b = nullptr, *magnitude = nullptr;
  double scale = 1;
};

// A weight of the model that a module of the adapter is, or is a part of.
struct ModulePart {
  std::string weight;
  std::vector<RecipeStep> steps;  // from the rows of the module to those of the weight
};

// A factor that leaves numbers of float32.
double possible_scale(const std::string& where, double scale) {
  constexpr double kMost = 1e6;
  if (!(std::fabs(scale) <= kMost))
    fail(ErrorCode::kCorrupt, "{}: alpha multiplies the adapter by {}, expected at most {}", where,
         scale, kMost);
  return scale;
}

std::vector<float> adapter_values(const std::string& where, const TensorView& t) {
  if (t.dtype != DType::kF32 && t.dtype != DType::kF16 && t.dtype != DType::kBF16)
    fail(ErrorCode::kUnsupported, "{} has type {}; adapters are f32, f16 or bf16", where,
         dtype_name(t.dtype));
  std::vector<float> out(static_cast<size_t>(t.elements()));
  decode_row(t.dtype, t.bytes.data(), out.data(), t.elements());
  for (float x : out)
    if (!std::isfinite(x))
      fail(ErrorCode::kCorrupt, "{} contains values that are not finite numbers", where);
  return out;
}

// Rows of `width` values, moved as the model's recipe moves the rows of the weight. A matrix that
// the file stores transposed needs nothing: b always has a row per output.
std::vector<float> moved_rows(const std::string& weight, const std::vector<RecipeStep>& steps,
                              std::vector<float> values, int64_t width) {
  std::vector<int64_t> dims = {std::ssize(values) / width, width};
  for (const RecipeStep& step : steps) {
    using Kind = RecipeStep::Kind;
    if (step.kind != Kind::kSliceRows && step.kind != Kind::kPermuteRows) continue;
    RecipeMove move = plan_move(weight, step, dims);
    std::vector<float> out(static_cast<size_t>(recipe_elements(weight, move.dims)));
    each_move(step, dims, [&](int64_t to, int64_t from, int64_t count) {
      std::copy_n(values.begin() + from * width, count * width, out.begin() + to * width);
    });
    values = std::move(out);
    dims = move.dims;
  }
  return values;
}

void check_shapes(const std::string& where, const AdapterModule& m) {
  if (!m.a || !m.b) fail(ErrorCode::kCorrupt, "{} has only one of its two matrices", where);
  if (m.a->dims.size() != 2 || m.b->dims.size() != 2)
    fail(ErrorCode::kUnsupported, "{} is not a pair of matrices", where);
  int64_t rank = m.a->dims[0];
  if (rank != m.b->dims[1])
    fail(ErrorCode::kCorrupt, "{}: A has rank {}, B has rank {}", where, rank, m.b->dims[1]);
  if (rank < 1 || rank > kMostRank)
    fail(ErrorCode::kCorrupt, "{}: the rank is {}, but must be from 1 to {}", where, rank,
         kMostRank);
}

AdapterTarget target_of(const std::string& where, const ModelConfig& model, const ModulePart& part,
                        const AdapterModule& m) {
  AdapterTarget out;
  const ModelConfig::Weight& weight = model.weights.at(part.weight);
  out.weight = part.weight;
  out.rank = m.a->dims[0];
  out.rows = weight.dims[0];
  out.columns = weight.dims[1];
  out.a = adapter_values(where + " (A)", *m.a);
  out.b = adapter_values(where + " (B)", *m.b);
  auto mismatch = [&] {
    fail(ErrorCode::kInvalidArgument,
         "{} changes a matrix of {} x {}, but {} of this model is {} x {}: the adapter is for "
         "another model",
         where, m.b->dims[0], m.a->dims[1], part.weight, out.rows, out.columns);
  };
  if (m.a->dims[1] != out.columns) mismatch();
  try {
    out.b = moved_rows(part.weight, part.steps, std::move(out.b), out.rank);
  } catch (const Error&) {
    mismatch();
  }
  if (std::ssize(out.b) != out.rows * out.rank) mismatch();
  for (float& x : out.b) x = static_cast<float>(x * m.scale);
  if (m.magnitude) {
    out.magnitude = adapter_values(where + " (magnitude)", *m.magnitude);
    if (std::ssize(out.magnitude) != m.b->dims[0]) mismatch();
    out.magnitude = moved_rows(part.weight, part.steps, std::move(out.magnitude), 1);
  }
  return out;
}

// --- PEFT

// The weights of each module, by the module's name without what precedes the layers.
std::map<std::string, std::vector<ModulePart>, std::less<>> peft_modules(const fs::path& path,
                                                                         const ModelConfig& model) {
  const Family* family = find_family(model.architecture);
  if (!family || model.embedding.encoder)
    fail(ErrorCode::kUnsupported, "{}: adapters of {} models are not supported", path.string(),
         model.architecture);
  std::map<std::string, std::vector<ModulePart>, std::less<>> out;
  for (const WeightSlot& slot : weight_slots(model)) {
    if (slot.dims.size() != 2 || slot.suffix != "weight" || slot.stem.ends_with("_embd")) continue;
    WeightPlace place = hf_place(*family, model, slot);
    constexpr std::string_view kSuffix = ".weight";
    if (!place.tensor.ends_with(kSuffix)) continue;
    place.tensor.resize(place.tensor.size() - kSuffix.size());
    out[place.tensor].push_back({slot.name(), std::move(place.steps)});
  }
  return out;
}

// "model.layers.0.mlp.up_proj" ends with "layers.0.mlp.up_proj", which the table has.
template <class Table>
typename Table::const_iterator find_module(const Table& table, std::string_view name) {
  for (;;) {
    auto it = table.find(name);
    size_t dot = name.find('.');
    if (it != table.end() || dot == std::string_view::npos) return it;
    name.remove_prefix(dot + 1);
  }
}

bool is_set(const Value& config, std::string_view key) {
  const Value* v = config.find(key);
  if (!v || v->is_null()) return false;
  if (v->is_bool()) return v->as_bool();
  if (v->is_array() || v->is_object()) return v->size() > 0;
  return true;
}

void refuse_variants(const std::string& where, const Value& config) {
  std::string kind = config.get_string("peft_type", "");
  if (kind != "LORA")
    fail(ErrorCode::kUnsupported, "{}: peft_type is {}; LORA is supported", where,
         kind.empty() ? "missing" : kind);
  std::string bias = config.get_string("bias", "none");
  if (bias != "none")
    fail(ErrorCode::kUnsupported,
         "{}: the adapter has biases (bias = \"{}\"), which are not supported; train it with bias "
         "= \"none\"",
         where, bias);
  for (const char* key :
       {"lora_bias", "trainable_token_indices", "layer_replication", "target_parameters",
        "alora_invocation_tokens", "arrow_config", "use_qalora", "use_bdlora"})
    if (is_set(config, key)) fail(ErrorCode::kUnsupported, "{}: {} is not supported", where, key);
  // These change the base model's weights before the adapter is added.
  const Value* init = config.find("init_lora_weights");
  if (init && init->is_string())
    for (const char* name : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      if (init->as_string().starts_with(name))
        fail(ErrorCode::kUnsupported,
             "{}: init_lora_weights = \"{}\" changes the base model; convert the adapter to plain "
             "LoRA with PEFT",
             where, init->as_string());
}

// The entry of a pattern whose key is the end of the module's name; nullptr: none.
const Value* pattern_entry(const std::string& where, const Value& config, std::string_view pattern,
                           std::string_view module) {
  const Value* entries = config.find(pattern);
  if (!entries || entries->is_null()) return nullptr;
  if (!entries->is_object()) fail(ErrorCode::kCorrupt, "{}: {} is not an object", where, pattern);
  for (const auto& [key, value] : entries->as_object()) {
    if (key.find_first_of("*+?()[]{}|^$\\") != std::string::npos)
      fail(ErrorCode::kUnsupported, "{}: {} has the regular expression \"{}\"; use module names",
           where, pattern, key);
    if (module == key || (module.size() > key.size() && module.ends_with(key) &&
                          module[module.size() - key.size() - 1] == '.'))
      return &value;
  }
  return nullptr;
}

struct PeftConfig {
  Value json;
  std::string where, base;
  int64_t rank = 8;
  double alpha = 8;
  bool rslora = false, dora = false;
};

PeftConfig read_peft_config(const fs::path& folder) {
  PeftConfig c;
  c.where = (folder / "adapter_config.json").string();
  std::string text = read_text_file(c.where, size_t{1} << 20);
  try {
    c.json = parse_json(text, "the file", {.max_depth = 32});
    if (!c.json.is_object()) fail(ErrorCode::kInvalidArgument, "not a JSON object");
    c.base = c.json.get_string("base_model_name_or_path", "");
    c.rank = c.json.get_int("r", 8);
    c.alpha = c.json.get_double("lora_alpha", 8);
    c.rslora = c.json.get_bool("use_rslora", false);
    c.dora = c.json.get_bool("use_dora", false);
    c.json.get_string("peft_type", "");
    c.json.get_string("bias", "none");
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "{}: {}", c.where, e.what());
  }
  refuse_variants(c.where, c.json);
  return c;
}

double peft_scale(const PeftConfig& c, std::string_view module, int64_t rank) {
  const Value* entry = pattern_entry(c.where, c.json, "rank_pattern", module);
  if (entry && !entry->is_int())
    fail(ErrorCode::kCorrupt, "{}: rank_pattern has a {} instead of an integer", c.where,
         entry->type_name());
  if (int64_t expected = entry ? entry->as_int() : c.rank; rank != expected)
    fail(ErrorCode::kCorrupt, "{}: {} is {}, but module {} has rank {}", c.where,
         entry ? "rank_pattern" : "r", expected, module, rank);
  entry = pattern_entry(c.where, c.json, "alpha_pattern", module);
  if (entry && !entry->is_number())
    fail(ErrorCode::kCorrupt, "{}: alpha_pattern has a {} instead of a number", c.where,
         entry->type_name());
  double alpha = entry ? entry->as_double() : c.alpha, size = static_cast<double>(rank);
  return possible_scale(c.where, alpha / (c.rslora ? std::sqrt(size) : size));
}

// Weights of the model that are no LoRA matrices, by the name of their tensor without what precedes
// the layers.
std::map<std::string, AdapterReplacement, std::less<>> peft_weights(const ModelConfig& model) {
  std::map<std::string, AdapterReplacement, std::less<>> out;
  const Family& family = *find_family(model.architecture);
  ModelConfig untied = model;
  untied.tied_embeddings = false;
  for (const WeightSlot& slot : weight_slots(untied)) {
    WeightPlace place = hf_place(family, untied, slot);
    auto [it, fresh] = out.try_emplace(place.tensor);
    it->second = {slot, "", std::move(place.steps)};
    if (!fresh) it->second.slot.stem.clear();  // a part of a tensor: cannot be replaced
  }
  return out;
}

void collect_peft(const std::string& where, const SafetensorsFile& file, const ModelConfig& model,
                  std::map<std::string, AdapterModule>& modules,
                  std::vector<AdapterReplacement>& replaced) {
  const auto weights = peft_weights(model);
  for (const std::string& name : file.names()) {
    std::string_view module = name;
    constexpr std::string_view kPrefix = "base_model.model.";
    if (module.starts_with(kPrefix)) module.remove_prefix(kPrefix.size());
    auto take = [&](std::string_view suffix, const TensorView* AdapterModule::*part) {
      if (!module.ends_with(suffix)) return false;
      module.remove_suffix(suffix.size());
      modules[std::string(module)].*part = file.find(name);
      return true;
    };
    if (take(".lora_A.weight", &AdapterModule::a) || take(".lora_B.weight", &AdapterModule::b) ||
        take(".lora_magnitude_vector", &AdapterModule::magnitude) ||
        take(".lora_magnitude_vector.weight", &AdapterModule::magnitude))
      continue;
    if (module.ends_with(".base_layer.weight"))  // PEFT adds it beside an adapted head or embedding
      fail(ErrorCode::kUnsupported,
           "{}: tensor {} is a layer of the base model; save the adapter with "
           "save_embedding_layers=False",
           where, name);
    auto whole = find_module(weights, module);
    if (whole == weights.end() || whole->second.slot.stem.empty())
      fail(ErrorCode::kUnsupported,
           "{}: tensor {} is not a LoRA matrix of a linear layer, nor a weight of this model ({})",
           where, name, model.architecture);
    replaced.push_back(whole->second);
    replaced.back().tensor = name;
  }
}

// Every module of modules_to_save must have a weight in the file.
void check_saved(const PeftConfig& config, const std::vector<AdapterReplacement>& replaced) {
  const Value* names = config.json.find("modules_to_save");
  if (!names || !names->is_array()) return;
  for (const Value& name : names->as_array()) {
    std::string part = fmt::format(".{}.", name.is_string() ? name.as_string() : "?");
    auto has = [&](const AdapterReplacement& r) {
      return ("." + r.tensor).find(part) != std::string::npos;
    };
    if (std::none_of(replaced.begin(), replaced.end(), has))
      fail(ErrorCode::kCorrupt, "{}: modules_to_save names {}, but the file has no weight of it",
           config.where, part.substr(1, part.size() - 2));
  }
}

ImportedAdapter import_peft(const fs::path& path, const ModelConfig& model) {
  const PeftConfig config = read_peft_config(path);
  auto file = SafetensorsFile::open(path / "adapter_model.safetensors");
  std::map<std::string, AdapterModule> modules;
  auto known = peft_modules(path, model);
  ImportedAdapter out;
  collect_peft(file->name(), *file, model, modules, out.replaced);
  check_saved(config, out.replaced);
  if (!out.replaced.empty()) out.file = file;
  out.base = config.base;
  out.dora = config.dora;
  for (auto& [name, m] : modules) {
    std::string at = fmt::format("{}: module {}", path.string(), name);
    auto parts = find_module(known, name);
    if (parts == known.end())
      fail(ErrorCode::kInvalidArgument,
           "{} is not a linear layer of this model ({}, {} layers): the adapter is for another "
           "model, or changes layers that are not supported",
           at, model.architecture, model.layers);
    check_shapes(at, m);
    if (out.dora != (m.magnitude != nullptr))
      fail(ErrorCode::kCorrupt, "{}: use_dora is {}, but the module has {} magnitude vector", at,
           out.dora, m.magnitude ? "a" : "no");
    m.scale = peft_scale(config, name, m.a->dims[0]);
    for (const ModulePart& part : parts->second)
      out.targets.push_back(target_of(at, model, part, m));
  }
  return out;
}

// --- GGUF

ImportedAdapter import_gguf_adapter(const fs::path& path, const ModelConfig& model) {
  auto file = GgufFile::open(path);
  const std::string& where = file->name();
  if (file->get_string("general.type", "") != "adapter" ||
      file->get_string("adapter.type", "") != "lora")
    fail(ErrorCode::kInvalidArgument, "{} is not a LoRA adapter (general.type is \"{}\")", where,
         file->get_string("general.type", ""));
  std::string kind = file->get_string("general.architecture", "");
  bool as_llama = model.architecture == "mistral" || model.architecture == "mixtral";
  if (!kind.empty() && kind != model.architecture && !(as_llama && kind == "llama"))
    fail(ErrorCode::kInvalidArgument,
         "{}: the adapter is for {} models, but this is a {} model: it is for another model", where,
         kind, model.architecture);
  auto embedding = model.weights.find("token_embd.weight");
  if (embedding == model.weights.end() ||
      embedding->second.recipe.sources != std::vector<std::string>{"token_embd.weight"})
    fail(ErrorCode::kUnsupported,
         "{}: a GGUF adapter needs the model as GGUF; use the PEFT folder that it was made from",
         where);
  std::map<std::string, AdapterModule> modules;
  for (const std::string& name : file->names()) {
    auto take = [&](std::string_view suffix, const TensorView* AdapterModule::*part) {
      if (!name.ends_with(suffix)) return false;
      modules[name.substr(0, name.size() - suffix.size())].*part = file->find(name);
      return true;
    };
    if (!take(".lora_a", &AdapterModule::a) && !take(".lora_b", &AdapterModule::b))
      fail(ErrorCode::kUnsupported, "{}: tensor {} is not a LoRA matrix", where, name);
  }
  ImportedAdapter out;
  out.base = file->get_string("general.base_model.0.name", "");
  double alpha = file->get_double("adapter.lora.alpha", 0);
  for (auto& [tensor, m] : modules) {
    std::string at = fmt::format("{}: tensor {}", where, tensor);
    check_shapes(at, m);
    if (alpha != 0) m.scale = possible_scale(where, alpha / static_cast<double>(m.a->dims[0]));
    size_t before = out.targets.size();
    for (const auto& [name, weight] : model.weights)
      if (weight.dims.size() == 2 && !name.starts_with("token_embd") &&
          weight.recipe.sources == std::vector<std::string>{tensor})
        out.targets.push_back(target_of(at, model, {name, weight.recipe.steps}, m));
    if (out.targets.size() == before)
      fail(ErrorCode::kInvalidArgument,
           "{} is not a linear layer of this model ({}, {} layers): the adapter is for another "
           "model, or changes layers that are not supported",
           at, model.architecture, model.layers);
  }
  return out;
}

}  // namespace

std::vector<fs::path> adapter_files(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return {path};
  return {path / "adapter_config.json", path / "adapter_model.safetensors"};
}

ImportedAdapter import_adapter(const fs::path& path, const ModelConfig& model) {
  std::error_code ec;
  if (!fs::exists(path, ec))
    fail(ErrorCode::kNotFound,
         "{}: no such file or folder; an adapter is a PEFT folder with adapter_config.json, or a "
         ".gguf file",
         path.string());
  bool folder = fs::is_directory(path, ec);
  for (const fs::path& file : adapter_files(path))
    if (folder && !fs::is_regular_file(file, ec))
      fail(ErrorCode::kNotFound, "{}: no {}; {}", path.string(), file.filename().string(),
           fs::exists(path / "adapter_model.bin", ec)
               ? "adapter_model.bin is a Python pickle, which is not read: save it as safetensors"
               : "a PEFT folder has adapter_config.json and adapter_model.safetensors");
  ImportedAdapter out = folder ? import_peft(path, model) : import_gguf_adapter(path, model);
  if (out.targets.empty() && out.replaced.empty())
    fail(ErrorCode::kCorrupt, "{}: the adapter is empty", path.string());
  for (const AdapterTarget& t : out.targets) out.rank = std::max(out.rank, t.rank);
  return out;
}

}  // namespace tokamak

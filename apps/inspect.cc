// tokamak inspect: what a model file contains and how much memory it needs.
#include <algorithm>
#include <map>

#include "apps/compile.h"
#include "apps/model_flags.h"
#include "apps/verbs.h"
#include "backend/cuda/driver.h"
#include "base/error.h"
#include "base/json.h"
#include "compile/import/encoder_config.h"
#include "compile/import/encoder_families.h"
#include "compile/import/families.h"
#include "plan/bundle.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

struct InspectFlags {
  OpenOptions model;
  std::string fn;
  bool graph = false, plan = false, tensors = false, json = false, devices = false;
  bool families = false;
};

struct TypeShare {
  int64_t tensors = 0, parameters = 0, bytes = 0;
};

struct Summary {
  std::map<std::string, TypeShare> types;
  int64_t parameters = 0, bytes = 0, tensors = 0;
};

// nullptr: its type is unknown to this build, which matters only to models that use the tensor.
const TensorView* known_tensor(const WeightSource& weights, const std::string& name) {
  try {
    return weights.find(name);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    return nullptr;
  }
}

void add_tensor(Summary& s, DType dtype, int64_t elements, int64_t bytes) {
  TypeShare& share = s.types[std::string(dtype_name(dtype))];
  share.tensors += 1;
  share.parameters += elements;
  share.bytes += bytes;
  s.tensors += 1;
  s.parameters += elements;
  s.bytes += bytes;
}

// The tensors of a quantised checkpoint are codes, scales and zeros: what counts are the weights
// that they become.
bool is_quantized(const ModelConfig& config) {
  return std::any_of(config.weights.begin(), config.weights.end(), [](const auto& w) {
    const std::vector<RecipeStep>& steps = w.second.recipe.steps;
    return !steps.empty() && steps[0].kind == RecipeStep::Kind::kJoinGroups;
  });
}

Summary summarize(const ImportedModel& model) {
  Summary s;
  if (is_quantized(model.config)) {
    for (const auto& [name, w] : model.config.weights) {
      int64_t n = 1;
      for (int64_t d : w.dims) n *= d;
      bool order = w.dtype == DType::kI32;  // of columns, not a parameter
      add_tensor(s, w.dtype, order ? 0 : n, static_cast<int64_t>(dtype_bytes(w.dtype, n)));
    }
    return s;
  }
  for (const std::string& name : model.weights->names()) {
    if (const TensorView* t = known_tensor(*model.weights, name)) {
      add_tensor(s, t->dtype, t->elements(), static_cast<int64_t>(t->bytes.size()));
    } else {
      s.types["unknown"].tensors += 1;
      s.tensors += 1;
    }
  }
  return s;
}

// KV bytes of one sequence of `tokens`: a window group keeps its window and the block that is being
// filled.
int64_t kv_bytes(const Module& module, int64_t tokens) {
  int64_t total = 0;
  for (const StateDecl& state : module.states) {
    const GroupDecl* group = module.find_group(state.group);
    if (state.growth == StateDecl::Growth::kPerSequence) {
      for (const PlaneDecl& plane : state.planes) total += plane_bytes(plane.type);
      continue;
    }
    int64_t kept =
        group->window > 0 ? std::min(tokens, group->window + group->block_size - 1) : tokens;
    int64_t blocks = (kept + group->block_size - 1) / group->block_size;
    for (const PlaneDecl& plane : state.planes)
      total += blocks * group->block_size * plane_bytes(plane.type);
  }
  return total;
}

std::string rope_text(const RopeConfig& r) {
  using Scaling = RopeConfig::Scaling;
  if (r.dims == 0) return "none";
  const char* name = r.scaling == Scaling::kNone      ? "default"
                     : r.scaling == Scaling::kLinear  ? "linear"
                     : r.scaling == Scaling::kDynamic ? "dynamic"
                     : r.scaling == Scaling::kLlama3  ? "llama3"
                     : r.scaling == Scaling::kYarn    ? "yarn"
                                                      : "longrope";
  if (!r.freq_divisors.empty()) return "per frequency";
  return r.scaling == Scaling::kNone ? name : fmt::format("{} {:g}", name, r.factor);
}

Value to_value(const ModelConfig& c, const Summary& s, const Module& module) {
  Value out = Value::Object{
      {"name", c.name},
      {"architecture", c.architecture},
      {"parameters", s.parameters},
      {"vocab", c.vocab},
      {"hidden", c.hidden},
      {"ffn", c.ffn},
      {"layers", c.layers},
      {"heads", c.heads},
      {"kv_heads", c.kv_heads},
      {"head_dim", c.head_dim},
      {"context", c.context},
      {"norm_eps", c.norm_eps},
      {"rope_theta", c.rope.theta},
      {"rope_dims", c.rope.dims},
      {"rope_scaling", rope_text(c.rope)},
      {"sliding_window", c.sliding_window},
      {"sliding_layers",
       static_cast<int64_t>(std::count(c.layer_slides.begin(), c.layer_slides.end(), true))},
      {"attention_softcap", c.attention_softcap},
      {"final_softcap", c.final_softcap},
      {"tied_embeddings", c.tied_embeddings},
      {"weight_bytes", s.bytes}};
  Value types = Value::object();
  for (const auto& [name, t] : s.types)
    types.set(name, Value::Object{
                        {"tensors", t.tensors}, {"parameters", t.parameters}, {"bytes", t.bytes}});
  out.set("types", types);
  if (c.experts.count > 0)
    out.set(
        "experts",
        Value::Object{{"count", c.experts.count},
                      {"per_token", c.experts.used},
                      {"ffn", c.experts.ffn},
                      {"shared_ffn", c.experts.shared_ffn},
                      {"layers", static_cast<int64_t>(std::count(c.experts.layers.begin(),
                                                                 c.experts.layers.end(), true))}});
  int64_t per_token = 0, per_sequence = 0;
  for (const StateDecl& state : module.states)
    for (const PlaneDecl& p : state.planes)
      (state.growth == StateDecl::Growth::kPerToken ? per_token : per_sequence) +=
          plane_bytes(p.type);
  out.set("kv_bytes_per_token", per_token);
  if (per_sequence > 0) out.set("state_bytes_per_sequence", per_sequence);
  Value by_context = Value::object();
  for (int64_t n = 1024; n < c.context; n *= 2)
    by_context.set(std::to_string(n), kv_bytes(module, n));
  by_context.set(std::to_string(c.context), kv_bytes(module, c.context));
  out.set("kv_bytes_by_context", by_context);
  return out;
}

std::string human_bytes(int64_t bytes) {
  auto b = static_cast<double>(bytes);
  if (b >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.1f} kB", b / 1e3);
}

void print_text(const Value& v) {
  fmt::print("{} ({})\n\n", v.at("name").as_string(), v.at("architecture").as_string());
  for (const char* key :
       {"parameters", "vocab", "hidden", "ffn", "layers", "heads", "kv_heads", "head_dim",
        "context", "sliding_window", "sliding_layers", "rope_theta", "rope_dims", "rope_scaling",
        "attention_softcap", "final_softcap", "norm_eps", "tied_embeddings"}) {
    const Value& field = v.at(key);
    fmt::print("  {:<18} {}\n", key, field.is_string() ? field.as_string() : dump_json(field));
  }
  if (const Value* e = v.find("experts"))
    fmt::print("  {:<18} {} of {} per token in {} layers, ffn {}, shared ffn {}\n", "experts",
               e->at("per_token").as_int(), e->at("count").as_int(), e->at("layers").as_int(),
               e->at("ffn").as_int(), e->at("shared_ffn").as_int());
  fmt::print("\n  {:<10} {:>8} {:>15} {:>12}\n", "type", "tensors", "parameters", "bytes");
  for (const auto& [name, t] : v.at("types").as_object())
    fmt::print("  {:<10} {:>8} {:>15} {:>12}\n", name, t.at("tensors").as_int(),
               t.at("parameters").as_int(), human_bytes(t.at("bytes").as_int()));
  const Value* state = v.find("state_bytes_per_sequence");
  fmt::print("\n  memory: weights {}, KV {} per token{}\n",
             human_bytes(v.at("weight_bytes").as_int()),
             human_bytes(v.at("kv_bytes_per_token").as_int()),
             state ? fmt::format(", states {} per sequence", human_bytes(state->as_int())) : "");
  if (state && v.at("kv_bytes_per_token").as_int() == 0) return;  // the same at every length
  for (const auto& [tokens, bytes] : v.at("kv_bytes_by_context").as_object())
    fmt::print("    KV of one sequence of {:>8} tokens {:>12}\n", tokens,
               human_bytes(bytes.as_int()));
}

void print_tensors(const WeightSource& weights) {
  for (const std::string& name : weights.names()) {
    if (const TensorView* t = known_tensor(weights, name))
      fmt::print("  {:<44} {:<8} [{}]\n", name, dtype_name(t->dtype), fmt::join(t->dims, ", "));
    else
      fmt::print("  {:<44} unknown\n", name);
  }
}

Value tensor_list(const WeightSource& weights) {
  Value list = Value::array();
  for (const std::string& name : weights.names()) {
    const TensorView* t = known_tensor(weights, name);
    if (!t) {
      list.push(Value::Object{{"name", name}, {"type", "unknown"}});
      continue;
    }
    Value dims = Value(Value::Array(t->dims.begin(), t->dims.end()));
    list.push(Value::Object{{"name", name},
                            {"type", std::string(dtype_name(t->dtype))},
                            {"shape", std::move(dims)},
                            {"bytes", static_cast<int64_t>(t->bytes.size())}});
  }
  return list;
}

void inspect_bundle(const InspectFlags& f) {
  if (f.tensors || !f.fn.empty())
    fail(ErrorCode::kUnsupported, "{} of a bundle cannot be listed; name the model's own file",
         f.tensors ? "tensors" : "functions");
  if (f.graph) {
    fmt::print("{}", BundleFile::open(f.model.model)->text(kBundleGraph));
    return;
  }
  Value summary = bundle_summary(f.model.model);
  if (f.json)
    fmt::print("{}\n", dump_json(summary, 2));
  else
    print_bundle_summary(summary);
}

// GPUs that the cuda backend could run on; without any, why.
void print_devices(bool json) {
  try {
    std::vector<cuda::DeviceInfo> devices = cuda::list_devices();
    if (json) {
      Value list = Value::array();
      for (const cuda::DeviceInfo& d : devices)
        list.push(Value::Object{
            {"name", d.name},
            {"capability", fmt::format("{}.{}", d.capability / 10, d.capability % 10)},
            {"multiprocessors", d.multiprocessors},
            {"memory", uint64_t{d.memory}}});
      fmt::print("{}\n", dump_json(Value::Object{{"driver", cuda::driver_text()},
                                                 {"devices", std::move(list)}},
                                   2));
      return;
    }
    fmt::print("{}, {} {}\n", cuda::driver_text(), devices.size(),
               devices.size() == 1 ? "device" : "devices");
    for (size_t i = 0; i < devices.size(); ++i)
      fmt::print("  cuda:{} {}, compute capability {}.{}, {} multiprocessors, {}\n", i,
                 devices[i].name, devices[i].capability / 10, devices[i].capability % 10,
                 devices[i].multiprocessors, human_bytes(static_cast<int64_t>(devices[i].memory)));
  } catch (const Error& e) {
    if (json)
      fmt::print("{}\n",
                 dump_json(Value::Object{{"devices", Value::array()}, {"error", e.what()}}, 2));
    else
      fmt::print("no cuda device: {}\n", e.what());
  }
}

// What import accepts.
void print_families(bool json) {
  Value list = Value::array();
  for (const Family& f : all_families())
    list.push(Value::Object{{"architecture", std::string(f.architecture)},
                            {"model_types", std::string(f.hf_names)},
                            {"gguf", f.in_gguf},
                            {"models", std::string(f.models)}});
  for (const EncoderFamily& f : all_encoders())
    list.push(Value::Object{{"architecture", std::string(f.architecture)},
                            {"model_types", std::string(f.hf_names)},
                            {"gguf", f.in_gguf},
                            {"models", "encoder"}});
  if (json) {
    fmt::print("{}\n", dump_json(list, 2));
    return;
  }
  size_t width = 0;
  for (const Value& f : list.as_array())
    width = std::max(width, f.at("model_types").as_string().size());
  fmt::print("{:<13} {:<{}} {:<5} {}\n", "architecture", "model_type", width, "GGUF", "models");
  for (const Value& f : list.as_array())
    fmt::print("{:<13} {:<{}} {:<5} {}\n", f.at("architecture").as_string(),
               f.at("model_types").as_string(), width, f.at("gguf").as_bool() ? "yes" : "no",
               f.at("models").as_string());
}

void inspect(const InspectFlags& f) {
  if (f.devices) return print_devices(f.json);
  if (f.families) return print_families(f.json);
  if (f.model.model.empty())
    fail(ErrorCode::kInvalidArgument,
         "MODEL is missing: name a model, or use --devices or --families");
  if (f.plan) {
    fmt::print("{}", plan_set_text(compile_for(f.model).source->plans()));
    return;
  }
  if (is_bundle(f.model.model)) return inspect_bundle(f);
  ImportedModel model = import_model(f.model.model);
  CompileOptions options;
  options.context = f.model.context;
  options.kv_dtype = compile_options(f.model).kv_dtype;
  Module module = build_module(model.config, options);
  if (f.graph) {
    if (f.fn == "decode") specialize_decode(module);
    if (!f.fn.empty() && module.find_function(f.fn) == nullptr)
      fail(ErrorCode::kInvalidArgument, "no function \"{}\": use step or decode", f.fn);
    // The whole module is printed, so that the text can be parsed again.
    std::erase_if(module.functions,
                  [&](const auto& fn) { return !f.fn.empty() && fn->name() != f.fn; });
    fmt::print("{}", print_module(module));
    return;
  }
  Value v = to_value(model.config, summarize(model), module);
  if (f.json && f.tensors) v.set("tensors", tensor_list(*model.weights));
  if (f.json) {
    fmt::print("{}\n", dump_json(v, 2));
    return;
  }
  print_text(v);
  if (f.tensors) print_tensors(*model.weights);
}

}  // namespace

void add_inspect_verb(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* verb =
      app.add_subcommand("inspect", "show what a model file contains and how much memory it needs");
  add_model_argument(*verb, flags->model);
  verb->get_option("MODEL")->required(false);
  verb->add_flag("--devices", flags->devices, "list the GPUs of this machine instead of a model");
  verb->add_flag("--families", flags->families, "list the model families that can be loaded");
  verb->add_flag("--tensors", flags->tensors, "list every tensor");
  CLI::Option* graph = verb->add_flag("--graph", flags->graph, "print the model's graph as text");
  verb->add_option("--fn", flags->fn, "only this function, step or decode")->needs(graph);
  CLI::Option* plan =
      verb->add_flag("--plan", flags->plan, "print the compiled plans as text")->excludes(graph);
  verb->add_flag("--json", flags->json, "print as JSON")->excludes(graph)->excludes(plan);
  add_model_flags(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak inspect model.gguf\n  tokamak inspect model.gguf --graph --fn decode | "
      "less\n"
      "  tokamak inspect model.gguf --json");
  verb->callback([flags] { inspect(*flags); });
}

}  // namespace tokamak

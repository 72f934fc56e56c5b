// KServe's open inference protocol (v2) over HTTP: metadata, health, infer, and Triton's extensions
// `generate` and, for inputs, `binary_tensor_data`. A model has one version, "1".
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "text/unicode.h"

namespace tokamak::openai {
namespace {

constexpr std::string_view kVersion = "1";
constexpr const char *kText = "text_input", *kAnswer = "text_output", *kReason = "finish_reason";

// Names that clients of other backends (TensorRT-LLM, text generation inference) use for fields of
// the OpenAI API.
constexpr std::pair<std::string_view, const char*> kParameterNames[] = {
    {"max_new_tokens", "max_tokens"},
    {"request_output_len", "max_tokens"},
    {"stop_words", "stop"},
    {"random_seed", "seed"},
    {"len_penalty", "length_penalty"},
    {"runtime_top_k", "top_k"},
    {"runtime_top_p", "top_p"},
    {"exclude_input_in_output", ""},
    {"binary_data_output", ""},
    {"details", ""},
};

const char* own_name(const std::string& name) {
  for (const auto& [other, own] : kParameterNames)
    if (other == name) return own;
  return name.c_str();
}

// "name" or "name/versions/1".
std::string model_name(const std::string& path) {
  constexpr std::string_view kMark = "/versions/";
  const size_t mark = path.rfind(kMark);
  if (mark == std::string::npos) return path;
  if (path.substr(mark + kMark.size()) != kVersion)
    throw ApiError(404, fmt::format("A model has the version '{}' only.", kVersion), "version",
                   "model_not_found");
  return path.substr(0, mark);
}

struct KserveOptions {
  std::string id;                    // of the client
  bool tensors = false;              // infer; otherwise generate
  std::vector<std::string> outputs;  // of infer that the client wants; empty: all
};

class KserveShape final : public Shape {
 public:
  KserveShape(ShapeOptions options, KserveOptions kserve)
      : Shape(std::move(options)), kserve_(std::move(kserve)) {
    id_ = kserve_.id.empty() ? new_id("kserve-") : kserve_.id;
  }

  void begin(std::string&, int, const std::vector<int32_t>*, const Usage&) override {}
  void piece(std::string& out, const Piece& piece, const Usage&) override {
    if (!piece.text.empty() || piece.finish != nullptr) add_event(out, dump_json(generated(piece)));
  }
  void end(std::string&, const Usage&) override {}  // the last piece has the reason
  void broken(std::string& out, const http::Response& error) override {
    add_event(out, flat_error(error).body);
  }

  std::string whole(const std::vector<Piece>& choices, const Usage&) override {
    if (!kserve_.tensors) return dump_json(generated(choices.at(0)));
    Value texts = Value::array(), reasons = Value::array(), outputs = Value::array();
    for (const Piece& piece : choices) {
      texts.push(piece.text);
      reasons.push(piece.finish == nullptr ? "stop" : piece.finish);
    }
    for (auto& [name, data] : {std::pair<const char*, Value&>{kAnswer, texts}, {kReason, reasons}})
      if (wants(name)) outputs.push(tensor(name, std::move(data)));
    Value value = answer_head();
    value.set("outputs", std::move(outputs));
    return dump_json(value);
  }

  http::Response error(http::Response response) const override {
    return flat_error(std::move(response));
  }

 private:
  bool wants(std::string_view output) const {
    const auto& names = kserve_.outputs;
    return names.empty() || std::find(names.begin(), names.end(), output) != names.end();
  }

  static Value tensor(const char* name, Value data) {
    const auto count = static_cast<int64_t>(data.size());
    return Value::Object{{"name", name},
                         {"datatype", "BYTES"},
                         {"shape", Value::Array{count}},
                         {"data", std::move(data)}};
  }

  Value answer_head() const {
    Value value = Value::object();
    value.set("id", id_);
    value.set("model_name", options_.model);
    value.set("model_version", kVersion);
    return value;
  }

  Value generated(const Piece& piece) const {
    Value value = answer_head();
    value.set(kAnswer, piece.text);
    if (piece.finish != nullptr) value.set(kReason, piece.finish);
    return value;
  }

  const KserveOptions kserve_;
};

Translated translated(Value body, KserveOptions options) {
  Translated out;
  out.body = std::move(body);
  out.chat = false;
  out.clamp = true;
  out.shape = [options = std::move(options)](ShapeOptions shape, const Tokenizer&) {
    return std::make_unique<KserveShape>(std::move(shape), options);
  };
  return out;
}

void set_parameter(Value& body, const std::string& name, const Value& value) {
  if (const char* own = own_name(name); *own != '\0') body.set(own, value);
}

void read_parameters(Fields& fields, Value& body) {
  const Value* parameters = fields.find("parameters");
  if (parameters == nullptr) return;
  if (!parameters->is_object()) wrong_type("parameters", "an object", *parameters);
  for (const auto& [name, value] : parameters->as_object()) set_parameter(body, name, value);
}

// {"text_input": ..., "parameters": {...}}; parameters may also stand beside the text.
Translated translate_text(const Value& given, const std::string& model, bool stream) {
  Fields fields(given);
  const std::string& text = fields.require_string(kText);
  KserveOptions options;
  options.id = fields.string("id").value_or("");
  Value body = Value::object();
  for (const auto& [name, value] : given.as_object())
    if (name != kText && name != "id" && name != "parameters") set_parameter(body, name, value);
  read_parameters(fields, body);
  body.set("prompt", text);
  body.set("model", model);
  body.set("stream", stream);
  return translated(std::move(body), std::move(options));
}

// The elements of a tensor, whose data may be nested as its shape is.
void flatten(const Value& data, Value& out, int depth = 0) {
  if (!data.is_array() || depth > 8) return out.push(data);
  for (const Value& element : data.as_array()) flatten(element, out, depth + 1);
}

template <typename T>
T take_number(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

template <typename T, typename As>
bool push_numbers(std::string_view bytes, Value& out) {
  if (bytes.size() % sizeof(T) != 0) return false;
  while (!bytes.empty()) out.push(static_cast<As>(take_number<T>(bytes)));
  return true;
}

// Each element is its length in 4 bytes and its text.
bool push_texts(std::string_view bytes, Value& out) {
  while (!bytes.empty()) {
    if (bytes.size() < sizeof(uint32_t)) return false;
    const auto size = take_number<uint32_t>(bytes);
    if (size > bytes.size() || !utf8_is_valid(bytes.substr(0, size))) return false;
    out.push(std::string(bytes.substr(0, size)));
    bytes.remove_prefix(size);
  }
  return true;
}

struct BinaryType {
  std::string_view name;
  bool (*push)(std::string_view bytes, Value& out);  // false: malformed
};

constexpr BinaryType kBinaryTypes[] = {
    {"BYTES", push_texts},
    {"BOOL", push_numbers<uint8_t, bool>},
    {"INT8", push_numbers<int8_t, int64_t>},
    {"INT16", push_numbers<int16_t, int64_t>},
    {"INT32", push_numbers<int32_t, int64_t>},
    {"INT64", push_numbers<int64_t, int64_t>},
    {"UINT8", push_numbers<uint8_t, int64_t>},
    {"UINT16", push_numbers<uint16_t, int64_t>},
    {"UINT32", push_numbers<uint32_t, int64_t>},
    {"FP32", push_numbers<float, double>},
    {"FP64", push_numbers<double, double>},
};

// The next `size` bytes that follow the JSON of the request.
Value read_binary(Fields& tensor, int64_t size, std::string_view& binary) {
  if (size > std::ssize(binary))
    bad_request(tensor.name("parameters"), "invalid_value",
                "Invalid '{}': binary_data_size is {}, and {} bytes are left in the request.",
                tensor.name("parameters"), size, binary.size());
  std::string_view bytes = binary.substr(0, static_cast<size_t>(size));
  binary.remove_prefix(bytes.size());
  const std::string type = tensor.string("datatype").value_or("");
  Value flat = Value::array();
  for (const BinaryType& known : kBinaryTypes)
    if (known.name == type && known.push(bytes, flat)) return flat;
  bad_request(tensor.name("datatype"), "invalid_value",
              "Invalid '{}': the binary data is not a tensor of type '{}' (texts in UTF-8, numbers "
              "of 8 to 64 bits).",
              tensor.name("datatype"), type);
}

Value read_data(Fields& tensor, std::string_view& binary) {
  if (const Value* parameters = tensor.find("parameters")) {
    Fields fields(*parameters, tensor.name("parameters"));
    if (auto size = fields.integer("binary_data_size", 0, INT64_MAX))
      return read_binary(tensor, *size, binary);
  }
  Value flat = Value::array();
  flatten(tensor.require("data"), flat);
  return flat;
}

Value read_tensor(Fields& tensor, std::string_view& binary) {
  Value flat = read_data(tensor, binary);
  int64_t count = 1;
  const auto* shape = tensor.array("shape");
  if (shape == nullptr) tensor.require("shape");
  for (const Value& extent : *shape) {
    const int64_t n = checked_integer(tensor.name("shape"), extent, 0, 1 << 20);
    count = n == 0 ? 0 : count > (1 << 20) / n ? -1 : count * n;
    if (count <= 0) break;
  }
  if (count != static_cast<int64_t>(flat.size()))
    bad_request(tensor.name("shape"), "invalid_value",
                "Invalid '{}': the data has {} elements, which is another number.",
                tensor.name("shape"), flat.size());
  return flat;
}

std::vector<std::string> read_outputs(Fields& fields) {
  std::vector<std::string> names;
  const auto* list = fields.array("outputs");
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    Fields output((*list)[i], fmt::format("outputs[{}]", i));
    std::string name = output.string("name").value_or("");
    if (name != kAnswer && name != kReason)
      bad_request(output.name("name"), "invalid_value", "Invalid '{}': the outputs are {} and {}.",
                  output.name("name"), kAnswer, kReason);
    names.push_back(std::move(name));
  }
  return names;
}

// One text per element of the tensor text_input; the other tensors, of one element, are parameters.
Translated translate_tensors(const Value& given, const std::string& model,
                             std::string_view binary) {
  Fields fields(given);
  KserveOptions options;
  options.tensors = true;
  options.id = fields.string("id").value_or("");
  options.outputs = read_outputs(fields);
  const auto* inputs = fields.array("inputs");
  if (inputs == nullptr) fields.require("inputs");
  Value body = Value::object(), prompts = Value::array();
  read_parameters(fields, body);
  for (size_t i = 0; i < inputs->size(); ++i) {
    Fields tensor((*inputs)[i], fmt::format("inputs[{}]", i));
    const std::string& name = tensor.require_string("name");
    Value data = read_tensor(tensor, binary);
    if (name == kText)
      prompts = std::move(data);
    else if (data.size() == 1)
      set_parameter(body, name, data.as_array()[0]);
    else
      bad_request(tensor.name("data"), "invalid_value",
                  "Invalid '{}': the parameter '{}' has one value for all texts.",
                  tensor.name("data"), name);
  }
  if (prompts.size() == 0)
    bad_request("inputs", "missing_required_parameter",
                "The tensor '{}' (BYTES) is missing or empty.", kText);
  for (const Value& prompt : prompts.as_array())
    if (!prompt.is_string()) wrong_type(kText, "a tensor of BYTES", prompt);
  body.set("prompt", std::move(prompts));
  body.set("model", model);
  body.set("stream", false);
  return translated(std::move(body), std::move(options));
}

Value tensor_info(const char* name) {
  return Value::Object{{"name", name}, {"datatype", "BYTES"}, {"shape", Value::Array{-1}}};
}

http::Response model_metadata(const ServedModel& model) {
  Value value = Value::object();
  value.set("name", model.name);
  value.set("versions", Value::Array{std::string(kVersion)});
  value.set("platform", "tokamak");
  value.set("inputs", Value::Array{tensor_info(kText)});
  value.set("outputs", Value::Array{tensor_info(kAnswer), tensor_info(kReason)});
  return http::json_response(value);
}

http::Response server_metadata(const Api& api) {
  Value value = Value::object();
  value.set("name", "tokamak");
  value.set("version", api.options().version);
  value.set("extensions", Value::Array{"generate", "binary_tensor_data"});
  return http::json_response(value);
}

// A probe: {NAME: true}, or 503 while the server drains.
http::Response state(const char* name, bool good) {
  http::Response response = http::json_response(Value::Object{{name, good}});
  if (!good) response.status = 503;
  return response;
}

}  // namespace

void add_kserve_routes(Api& api, http::Router& router) {
  using http::Request;
  auto probe = [&](const char* path, Api::Answer answer) {
    router.add("GET", path, api.quick(std::move(answer), true, flat_error), true);
  };
  probe("/v2/health/live", [](const Request&) { return state("live", true); });
  probe("/v2/health/ready", [](const Request& r) { return state("ready", !r.draining); });
  auto get = [&](const char* path, Api::Answer answer) {
    router.add("GET", path, api.quick(std::move(answer), false, flat_error));
  };
  get("/v2", [&api](const Request&) { return server_metadata(api); });
  get("/v2/models/{name...}/ready", [&api](const Request& r) {
    api.model(model_name(r.parameter));
    return state("ready", !r.draining);
  });
  get("/v2/models/{name...}",
      [&api](const Request& r) { return model_metadata(*api.model(model_name(r.parameter))); });
  auto post = [&](const char* path, auto translate) {
    auto dialect = [translate](const Value& body, const Request& r) {
      return translate(body, model_name(r.parameter), r);
    };
    router.add("POST", path, api.generator({dialect, flat_error}));
  };
  post("/v2/models/{name...}/infer",
       [](const Value& body, const std::string& model, const Request& r) {
         return translate_tensors(body, model, r.binary());
       });
  for (bool stream : {false, true})
    post(stream ? "/v2/models/{name...}/generate_stream" : "/v2/models/{name...}/generate",
         [stream](const Value& body, const std::string& model, const Request&) {
           return translate_text(body, model, stream);
         });
}

}  // namespace tokamak::openai

#include "serve/openai/vectors.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/json.h"
#include "serve/openai/api_error.h"
#include "serve/openai/fields.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

constexpr size_t kMaxInputs = 2048;  // as in the OpenAI API
constexpr int64_t kMaxPriority = 1 << 20;

void require_embeddings(const ServedModel& model) {
  const EmbeddingSpec& spec = model.embedding;
  if (spec.embeds()) return;
  if (spec.per_token())
    bad_request("model", "model_not_supported",
                "The model '{}' gives a vector of each token (--pooling none), and none of a text; "
                "use /embedding.",
                model.name);
  if (spec.classifies())
    bad_request("model", "model_not_supported",
                "The model '{}' is a classifier and gives no embeddings; use /v1/classify or "
                "/v1/rerank.",
                model.name);
  bad_request("model", "model_not_supported",
              "The model '{}' generates text and gives no embeddings; serve an embedding model, or "
              "start the server with --pooling last.",
              model.name);
}

int64_t limit_of(const ServedModel& model) {
  int64_t context = model.max_model_len, own = model.embedding.max_tokens;
  return own > 0 && (context == 0 || own < context) ? own : context;
}

// Tokens that longer texts are cut to; 0: they are refused. -1 in the request: the model's limit.
int64_t read_truncation(Fields& fields, const ServedModel& model) {
  auto most = fields.integer("truncate_prompt_tokens", -1, INT32_MAX);
  bool cut = fields.boolean("truncate").value_or(false);
  if (most && *most == 0)
    bad_request("truncate_prompt_tokens", "invalid_value",
                "Invalid 'truncate_prompt_tokens': use -1 or a positive number.");
  if (most && *most > 0) return std::min(*most, limit_of(model));
  return most || cut ? limit_of(model) : 0;
}

void check_input(const EmbeddingInput& input, const std::string& param, const ServedModel& model) {
  if (input.ids.empty())
    bad_request(param, "invalid_value", "Invalid '{}': it has no tokens.", param);
  if (int64_t limit = limit_of(model), n = std::ssize(input.ids); limit > 0 && n > limit)
    bad_request(param, "context_length_exceeded",
                "This model's maximum context length is {} tokens. However, your {} resulted in {} "
                "tokens. Please reduce its length, or set 'truncate_prompt_tokens' to -1.",
                limit, param, n);
}

// The text that the model's makers put before inputs of a kind.
std::string read_prompt(Fields& fields, const ServedModel& model) {
  const EmbeddingSpec& spec = model.embedding;
  std::string kind = fields.string("input_type").value_or(spec.default_prompt);
  auto asked = fields.string("prompt_name");
  if (!asked) return spec.prompt_for(kind);
  if (const std::string* text = spec.prompt(*asked)) return *text;
  bad_request("prompt_name", "invalid_value",
              "Invalid 'prompt_name': the model '{}' has no prompt of this name.", model.name);
}

// Token ids, between which there may be texts, as in llama.cpp. Special tokens are added only if
// all is text.
void append_ids(const std::string& param, const Value& item, const ServedModel& model,
                std::vector<int32_t>& ids) {
  if (item.is_string()) {
    for (int32_t id : model.tokenizer->encode(item.as_string(), {.add_special = false}))
      ids.push_back(id);
  } else {
    ids.push_back(
        static_cast<int32_t>(checked_integer(param, item, 0, model.tokenizer->vocab_size() - 1)));
  }
}

// A string, strings, token ids, or lists of them.
void read_inputs(Fields& fields, const char* field, const std::string& prefix, int64_t most,
                 VectorRequest& out) {
  const ServedModel& model = *out.model;
  const Value& value = fields.require(field);
  auto add = [&](const std::string& param, const Value& item) {
    EmbeddingInput input;
    if (item.is_string()) {
      input = model.embedder->encode(prefix + item.as_string(), most);
    } else if (item.is_array()) {
      const Value::Array& ids = item.as_array();
      for (size_t i = 0; i < ids.size(); ++i)
        append_ids(fmt::format("{}[{}]", param, i), ids[i], model, input.ids);
    } else {
      wrong_type(param, "a string or an array of token ids", item);
    }
    check_input(input, param, model);
    out.inputs.push_back(std::move(input));
  };
  out.param = field;
  bool list = value.is_array() && value.size() > 0;
  if (list)  // ids, also with texts between them, are one input
    for (const Value& item : value.as_array()) list = list && !item.is_number();
  if (!value.is_string() && !value.is_array())
    wrong_type(field, "a string, an array of strings, or token ids", value);
  if (value.is_array() && value.size() == 0)
    bad_request(field, "empty_array", "Invalid '{}': the array is empty.", field);
  if (!list) return add(field, value);
  if (value.size() > kMaxInputs)
    bad_request(field, "array_above_max_length",
                "Invalid '{}': at most {} inputs are allowed, but got {}.", field, kMaxInputs,
                value.size());
  for (size_t i = 0; i < value.size(); ++i)
    add(fmt::format("{}[{}]", field, i), value.as_array()[i]);
}

VectorRequest begin(Fields& fields, std::shared_ptr<const ServedModel> model) {
  VectorRequest out;
  out.model = std::move(model);
  fields.ignore({"model", "user"});
  out.priority =
      static_cast<int32_t>(fields.integer("priority", -kMaxPriority, kMaxPriority).value_or(0));
  return out;
}

Value usage_of(int64_t tokens) {
  return Value::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}};
}

std::string base64(std::span<const float> vector) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes, out;
  for (float x : vector) {  // little-endian, whatever this machine is
    auto bits = std::bit_cast<uint32_t>(x);
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(bits >> (8 * i) & 0xff));
  }
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      out += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// Numbers are written as the shortest text that gives the same float.
void add_vector(std::string& body, std::span<const float> vector) {
  body += '[';
  for (size_t i = 0; i < vector.size(); ++i)
    fmt::format_to(std::back_inserter(body), "{}{}", i > 0 ? "," : "", vector[i]);
  body += ']';
}

// What a list answer begins with, up to the entries of `data`.
std::string list_head(const char* prefix, const std::string& model) {
  Value head = Value::Object{
      {"id", new_id(prefix)}, {"object", "list"}, {"created", unix_seconds()}, {"model", model}};
  std::string text = dump_json(head);
  text.pop_back();
  return text + ",\"data\":[";
}

// How one text of a request is paired with the others: scores in [0, 1] of a model for pairs, the
// cosine of embeddings otherwise.
struct Pairs {
  std::vector<std::string> first, second;  // the same number, or one first text
  std::string first_param, second_param;
};

void add_pairs(const Pairs& pairs, int64_t most, VectorRequest& out) {
  const ServedModel& model = *out.model;
  const EmbeddingSpec& spec = model.embedding;
  bool cross = spec.classifies();
  if (cross && spec.labels.size() != 1)
    bad_request("model", "model_not_supported",
                "The model '{}' has {} labels; a model that scores pairs has one. Use "
                "/v1/classify.",
                model.name, spec.labels.size());
  if (!cross) require_embeddings(model);
  auto param = [](const std::string& name, size_t i, size_t n) {
    return n == 1 ? name : fmt::format("{}[{}]", name, i);
  };
  auto add = [&](EmbeddingInput input, const std::string& name) {
    check_input(input, name, model);
    out.inputs.push_back(std::move(input));
  };
  for (size_t i = 0; cross && i < pairs.second.size(); ++i)
    add(model.embedder->encode_pair(pairs.first[pairs.first.size() == 1 ? 0 : i], pairs.second[i],
                                    most),
        param(pairs.second_param, i, pairs.second.size()));
  if (cross) return;
  for (size_t i = 0; i < pairs.first.size(); ++i)
    add(model.embedder->encode(spec.prompt_for("query") + pairs.first[i], most),
        param(pairs.first_param, i, pairs.first.size()));
  for (size_t i = 0; i < pairs.second.size(); ++i)
    add(model.embedder->encode(spec.prompt_for("document") + pairs.second[i], most),
        param(pairs.second_param, i, pairs.second.size()));
}

std::vector<double> pair_scores(const std::vector<std::vector<float>>& vectors, bool cross,
                                size_t firsts) {
  std::vector<double> scores;
  for (size_t i = cross ? 0 : firsts; i < vectors.size(); ++i)
    scores.push_back(cross ? label_probabilities(vectors[i])[0]
                           : cosine(vectors[firsts == 1 ? 0 : i - firsts], vectors[i]));
  return scores;
}

std::vector<std::string> read_texts(Fields& fields, const char* field, bool objects) {
  const Value& value = fields.require(field);
  std::vector<std::string> texts;
  if (value.is_string()) return {value.as_string()};
  if (!value.is_array()) wrong_type(field, "a string or an array of strings", value);
  if (value.size() == 0 || value.size() > kMaxInputs)
    bad_request(field, value.size() == 0 ? "empty_array" : "array_above_max_length",
                "Invalid '{}': expected 1 to {} texts, but got {}.", field, kMaxInputs,
                value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    std::string param = fmt::format("{}[{}]", field, i);
    const Value& item = value.as_array()[i];
    const Value* text = objects && item.is_object() ? item.find("text") : &item;
    if (text == nullptr || !text->is_string()) wrong_type(param, "a string", item);
    texts.push_back(text->as_string());
  }
  return texts;
}

}  // namespace

VectorRequest prepare_embeddings(const Value& body, std::shared_ptr<const ServedModel> model) {
  Fields fields(body);
  VectorRequest out = begin(fields, std::move(model));
  const ServedModel& served = *out.model;
  require_embeddings(served);
  std::string format = fields.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    bad_request("encoding_format", "invalid_value",
                "Invalid 'encoding_format': expected 'float' or 'base64'.");
  int64_t dimensions = fields.integer("dimensions", 1, served.vector_width).value_or(0);
  bool normalize = fields.boolean("normalize").value_or(served.embedding.normalize);
  std::string prefix = read_prompt(fields, served);
  read_inputs(fields, "input", prefix, read_truncation(fields, served), out);
  log_unknown_fields(fields.unknown());
  out.answer = [name = served.name, tokens = out.tokens(), dimensions, normalize,
                text = format == "base64"](std::vector<std::vector<float>> vectors) {
    std::string json = "{\"object\":\"list\",\"data\":[";
    for (size_t i = 0; i < vectors.size(); ++i) {
      finish_vector(vectors[i], dimensions, normalize);
      fmt::format_to(std::back_inserter(json),
                     "{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":", i > 0 ? "," : "",
                     i);
      if (text)
        json += '"' + base64(vectors[i]) + '"';
      else
        add_vector(json, vectors[i]);
      json += '}';
    }
    return json + "],\"model\":" + dump_json(Value(name)) +
           ",\"usage\":" + dump_json(usage_of(tokens)) + "}";
  };
  return out;
}

VectorRequest prepare_llama_embedding(const Value& body, std::shared_ptr<const ServedModel> model) {
  Fields fields(body);
  VectorRequest out = begin(fields, std::move(model));
  const ServedModel& served = *out.model;
  const EmbeddingSpec& spec = served.embedding;
  out.per_token = spec.per_token();
  if (!out.per_token) require_embeddings(served);
  const int64_t norm = fields.integer("embd_normalize", -1, 2).value_or(out.per_token ? -1 : 2);
  if (norm == 0 || norm == 1)
    bad_request("embd_normalize", "invalid_value",
                "Invalid 'embd_normalize': use 2 (length 1) or -1 (as the model gives it).");
  const bool normalize = norm == 2;
  read_inputs(fields, body.has("content") ? "content" : "input", read_prompt(fields, served),
              read_truncation(fields, served), out);
  log_unknown_fields(fields.unknown());
  out.answer = [normalize, width = served.vector_width](std::vector<std::vector<float>> texts) {
    std::string json = "[";
    for (size_t i = 0; i < texts.size(); ++i) {
      fmt::format_to(std::back_inserter(json), "{}{{\"index\":{},\"embedding\":[", i > 0 ? "," : "",
                     i);
      const auto n = static_cast<size_t>(width);
      for (size_t at = 0; at < texts[i].size(); at += n) {
        std::vector<float> vector(texts[i].begin() + static_cast<std::ptrdiff_t>(at),
                                  texts[i].begin() + static_cast<std::ptrdiff_t>(at + n));
        finish_vector(vector, 0, normalize);
        if (at > 0) json += ',';
        add_vector(json, vector);
      }
      json += "]}";
    }
    return json + "]";
  };
  return out;
}

VectorRequest prepare_bare_embeddings(const Value& body, std::shared_ptr<const ServedModel> model) {
  return (model->embedding.per_token() ? prepare_llama_embedding : prepare_embeddings)(
      body, std::move(model));
}

VectorRequest prepare_ollama_embed(const Value& body, std::shared_ptr<const ServedModel> model) {
  Fields fields(body);
  VectorRequest out = begin(fields, std::move(model));
  const ServedModel& served = *out.model;
  require_embeddings(served);
  const bool one = !body.has("input");  // the older route
  const EmbeddingSpec& spec = served.embedding;
  const bool truncate = fields.boolean("truncate").value_or(true);
  const int64_t dimensions = fields.integer("dimensions", 1, served.vector_width).value_or(0);
  read_inputs(fields, one ? "prompt" : "input", spec.prompt_for(spec.default_prompt),
              truncate ? limit_of(served) : 0, out);
  fields.ignore({"options", "keep_alive"});
  log_unknown_fields(fields.unknown());
  out.answer = [name = served.name, tokens = out.tokens(), dimensions,
                one](std::vector<std::vector<float>> vectors) {
    std::string json;
    for (std::vector<float>& vector : vectors) {
      finish_vector(vector, dimensions, true);
      if (!json.empty()) json += ',';
      add_vector(json, vector);
    }
    if (one) return "{\"embedding\":" + json + "}";
    return fmt::format("{{\"model\":{},\"embeddings\":[{}],\"prompt_eval_count\":{}}}",
                       dump_json(Value(name)), json, tokens);
  };
  return out;
}

VectorRequest prepare_rerank(const Value& body, std::shared_ptr<const ServedModel> model) {
  Fields fields(body);
  VectorRequest out = begin(fields, std::move(model));
  const std::string& query = fields.require_string("query");
  const bool plain = body.has("texts") && !body.has("documents");  // text-embeddings-inference's
  const char* list = plain ? "texts" : "documents";
  Pairs pairs{{query}, read_texts(fields, list, !plain), "query", list};
  int64_t count = std::ssize(pairs.second);
  int64_t top = fields.integer("top_n", 0, INT32_MAX).value_or(0);
  bool with_text = plain ? fields.boolean("return_text").value_or(false)
                         : fields.boolean("return_documents").value_or(true);
  out.param = list;
  add_pairs(pairs, read_truncation(fields, *out.model), out);
  log_unknown_fields(fields.unknown());
  out.answer = [name = out.model->name, tokens = out.tokens(), with_text, plain,
                keep = top > 0 ? std::min(top, count) : count,
                cross = out.model->embedding.classifies(),
                documents = std::move(pairs.second)](std::vector<std::vector<float>> vectors) {
    std::vector<double> scores = pair_scores(vectors, cross, 1);
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    Value results = Value::array();
    for (int64_t i = 0; i < keep; ++i) {
      size_t at = order[static_cast<size_t>(i)];
      Value entry = Value::Object{{"index", static_cast<int64_t>(at)}};
      if (with_text && plain) entry.set("text", documents[at]);
      if (with_text && !plain) entry.set("document", Value::Object{{"text", documents[at]}});
      entry.set(plain ? "score" : "relevance_score", scores[at]);
      results.push(std::move(entry));
    }
    if (plain) return dump_json(results);
    return dump_json(Value::Object{{"id", new_id("rerank-")},
                                   {"model", name},
                                   {"usage", usage_of(tokens)},
                                   {"results", std::move(results)}});
  };
  return out;
}

VectorRequest prepare_score(const Value& body, std::shared_ptr<const ServedModel> model) {
  Fields fields(body);
  VectorRequest out = begin(fields, std::move(model));
  Pairs pairs{read_texts(fields, "text_1", false), read_texts(fields, "text_2", false), "text_1",
              "text_2"};
  size_t firsts = pairs.first.size();
  if (firsts != 1 && firsts != pairs.second.size())
    bad_request("text_1", "invalid_value",
                "'text_1' has {} texts and 'text_2' has {}: use one, or the same number.", firsts,
                pairs.second.size());
  out.param = "text_2";
  add_pairs(pairs, read_truncation(fields, *out.model), out);
  log_unknown_fields(fields.unknown());
  out.answer = [name = out.model->name, tokens = out.tokens(), firsts,
                cross =
                    out.model->embedding.classifies()](std::vector<std::vector<float>> vectors) {
    std::string json = list_head("score-", name);
    std::vector<double> scores = pair_scores(vectors, cross, firsts);
    for (size_t i = 0; i < scores.size(); ++i)
      fmt::format_to(std::back_inserter(json),
                     "{}{{\"index\":{},\"object\":\"score\",\"score\":{}}}", i > 0 ? "," : "", i,
                     scores[i]);
    return json + "],\"usage\":" + dump_json(usage_of(tokens)) + "}";
  };
  return out;
}

VectorRequest prepare_classify(const Value& body, std::shared_ptr<const ServedModel> model) {
  Fields fields(body);
  VectorRequest out = begin(fields, std::move(model));
  const ServedModel& served = *out.model;
  if (!served.embedding.classifies())
    bad_request("model", "model_not_supported", "The model '{}' is not a classifier.", served.name);
  read_inputs(fields, "input", "", read_truncation(fields, served), out);
  log_unknown_fields(fields.unknown());
  out.answer = [name = served.name, tokens = out.tokens(),
                labels = served.embedding.labels](std::vector<std::vector<float>> vectors) {
    std::string json = list_head("classify-", name);
    for (size_t i = 0; i < vectors.size(); ++i) {
      std::vector<double> probs = label_probabilities(vectors[i]);
      auto best = static_cast<size_t>(std::max_element(probs.begin(), probs.end()) - probs.begin());
      Value entry = Value::Object{{"index", static_cast<int64_t>(i)},
                                  {"label", labels[best]},
                                  {"probs", Value(Value::Array(probs.begin(), probs.end()))},
                                  {"num_classes", std::ssize(probs)}};
      json += (i > 0 ? "," : "") + dump_json(entry);
    }
    return json + "],\"usage\":" + dump_json(usage_of(tokens)) + "}";
  };
  return out;
}

}  // namespace tokamak::openai

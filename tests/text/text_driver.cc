// The text lane over a pipe, for tests written in Python: one JSON request per line on stdin, one
// JSON answer per line on stdout. {"error": ...} if the request fails.
//   {"load_json": path} {"load_gguf": path} {"load_text": tokenizer.json text}
//   {"encode": text, "special": bool, "parse": bool} {"encode_file": path} {"decode": [ids],
//   "skip": bool}
//   {"stream": [ids], "skip": bool} {"both": text, "special": bool, "skip": bool} {"render":
//   template, "context": {...}, "now": iso}
#include <chrono>
#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/import/tokenizer_gguf.h"
#include "compile/import/tokenizer_json.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tokamak {
namespace {

std::string file_text(const std::string& path) { return read_text_file(path); }

class Driver {
 public:
  Value answer(const Value& request) {
    if (const Value* v = request.find("load_json"))
      return load(tokenizer_from_json(file_text(v->as_string())));
    if (const Value* v = request.find("load_text"))
      return load(tokenizer_from_json(v->as_string()));
    if (const Value* v = request.find("load_gguf"))
      return load(tokenizer_from_gguf(*GgufFile::open(v->as_string())));
    if (const Value* v = request.find("render")) return render(*v, request);
    if (!tokenizer_) fail(ErrorCode::kInvalidArgument, "no tokenizer is loaded");
    if (const Value* v = request.find("encode")) return encode(v->as_string(), request);
    if (const Value* v = request.find("both")) return both(v->as_string(), request);
    if (const Value* v = request.find("encode_file")) {
      const std::string text = file_text(v->as_string());
      const auto start = std::chrono::steady_clock::now();
      const auto ids = tokenizer_->encode(text, {false, true});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      return Value::Object{{"count", static_cast<int64_t>(ids.size())}, {"seconds", took.count()}};
    }
    if (const Value* v = request.find("decode"))
      return tokenizer_->decode(ids_of(*v), {request.get_bool("skip", false), true});
    if (const Value* v = request.find("stream")) return stream(*v, request.get_bool("skip", false));
    fail(ErrorCode::kInvalidArgument, "unknown request");
  }

 private:
  Value load(TokenizerSpec spec) {
    tokenizer_ = std::make_unique<Tokenizer>(parse_tokenizer(serialize_tokenizer(spec)));
    if (!(tokenizer_->spec() == spec))
      fail(ErrorCode::kInternal, "the spec does not survive serialisation");
    return tokenizer_->vocab_size();
  }
  Value encode(const std::string& text, const Value& request) {
    Value out = Value::array();
    for (int32_t id : tokenizer_->encode(
             text, {request.get_bool("special", false), request.get_bool("parse", true)}))
      out.push(id);
    return out;
  }
  // Encodes and decodes again, as a whole and in a stream.
  Value both(const std::string& text, const Value& request) {
    const Value ids = encode(text, request);
    const bool skip = request.get_bool("skip", false);
    return Value::Object{{"ids", ids},
                         {"text", tokenizer_->decode(ids_of(ids), {skip, true})},
                         {"stream", stream(ids, skip)}};
  }
  static std::vector<int32_t> ids_of(const Value& list) {
    std::vector<int32_t> ids;
    for (const Value& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
    return ids;
  }
  Value stream(const Value& list, bool skip) {
    Detokenizer detokenizer(*tokenizer_, {skip, true});
    Value parts = Value::array();
    for (int32_t id : ids_of(list)) parts.push(detokenizer.push(id));
    parts.push(detokenizer.finish());
    return parts;
  }
  static Value render(const Value& source, const Value& request) {
    RenderLimits limits;
    if (const Value* now = request.find("now")) limits.now = TemplateTime::parse(now->as_string());
    return ChatTemplate::parse(source.as_string()).render(request.at("context"), limits);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace tokamak

int main() {
  tokamak::Driver driver;
  for (std::string line; std::getline(std::cin, line);) {
    tokamak::Value out;
    try {
      out = driver.answer(tokamak::parse_json(line));
    } catch (const tokamak::Error& e) {
      out = tokamak::Value::Object{{"error", e.what()}};
    }
    std::cout << tokamak::dump_json(out) << std::endl;
  }
}

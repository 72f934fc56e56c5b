#include "plan/tokenizer_spec.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

constexpr std::string_view kMagic = "TKTOK1\n";

// Little-endian, lengths before contents; the small parts are one JSON text.
class Writer {
 public:
  void u64(uint64_t v) {
    for (int i = 0; i < 8; ++i) out_ += static_cast<char>(v >> (8 * i) & 0xFF);
  }
  void i32(int32_t v) {
    for (int i = 0; i < 4; ++i)
      out_ += static_cast<char>(static_cast<uint32_t>(v) >> (8 * i) & 0xFF);
  }
  void text(std::string_view s) {
    u64(s.size());
    out_ += s;
  }
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : in_(bytes) {}
  std::string_view take(uint64_t count) {
    if (count > in_.size())
      fail(ErrorCode::kCorrupt, "tokenizer: {} bytes are needed, {} are left", count, in_.size());
    const std::string_view out = in_.substr(0, count);
    in_.remove_prefix(count);
    return out;
  }
  uint64_t u64() {
    const std::string_view b = take(8);
    uint64_t v = 0;
    for (int i = 0; i < 8; ++i)
      v |= static_cast<uint64_t>(static_cast<unsigned char>(b[i])) << (8 * i);
    return v;
  }
  int32_t i32() {
    const std::string_view b = take(4);
    uint32_t v = 0;
    for (int i = 0; i < 4; ++i)
      v |= static_cast<uint32_t>(static_cast<unsigned char>(b[i])) << (8 * i);
    return static_cast<int32_t>(v);
  }
  // A count of items of at least `item` bytes each: never more than the rest can hold.
  size_t count(size_t item) {
    const uint64_t n = u64();
    if (n > in_.size() / item)
      fail(ErrorCode::kCorrupt, "tokenizer: {} items in {} bytes", n, in_.size());
    return static_cast<size_t>(n);
  }
  std::string_view text() { return take(u64()); }
  bool done() const { return in_.empty(); }

 private:
  std::string_view in_;
};

struct NamedId {
  const char* name;
  int32_t TokenizerSpec::*field;
};
constexpr NamedId kIds[] = {{"unk", &TokenizerSpec::unk_id}, {"bos", &TokenizerSpec::bos_id},
                            {"eos", &TokenizerSpec::eos_id}, {"eot", &TokenizerSpec::eot_id},
                            {"pad", &TokenizerSpec::pad_id}, {"sep", &TokenizerSpec::sep_id},
                            {"cls", &TokenizerSpec::cls_id}, {"mask", &TokenizerSpec::mask_id}};
struct NamedFlag {
  const char* name;
  bool TokenizerSpec::*field;
};
constexpr NamedFlag kFlags[] = {{"byte_fallback", &TokenizerSpec::byte_fallback},
                                {"ignore_merges", &TokenizerSpec::ignore_merges},
                                {"fuse_unk", &TokenizerSpec::fuse_unk},
                                {"merge_by_score", &TokenizerSpec::merge_by_score},
                                {"add_bos", &TokenizerSpec::add_bos},
                                {"add_eos", &TokenizerSpec::add_eos}};

Value int_list(const std::vector<int32_t>& ids) {
  Value list = Value::array();
  for (int32_t id : ids) list.push(id);
  return list;
}
std::vector<int32_t> read_int_list(const Value& list) {
  std::vector<int32_t> ids;
  for (const Value& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

Value head_of(const TokenizerSpec& s) {
  Value head = Value::object();
  head.set("model", static_cast<int>(s.model));
  for (const NamedId& n : kIds) head.set(n.name, s.*n.field);
  for (const NamedFlag& n : kFlags) head.set(n.name, s.*n.field);
  head.set("continuing_prefix", s.continuing_prefix);
  head.set("word_suffix", s.word_suffix);
  head.set("max_word_chars", s.max_word_chars);
  head.set("normalizer", s.normalizer);
  head.set("pre_tokenizer", s.pre_tokenizer);
  head.set("post_processor", s.post_processor);
  head.set("decoder", s.decoder);
  head.set("eog", int_list(s.eog_ids));
  head.set("unmergeable", int_list(s.unmergeable));
  head.set("chat_template", s.chat_template);
  Value named = Value::array();
  for (const auto& [name, text] : s.named_templates) named.push(Value::Array{name, text});
  head.set("named_templates", named);
  return head;
}

void read_head(const Value& head, TokenizerSpec& s) {
  const int64_t model = head.at("model").as_int();
  if (model < 0 || model > static_cast<int>(TokenizerModel::kWordLevel))
    fail(ErrorCode::kCorrupt, "tokenizer: unknown model {}", model);
  s.model = static_cast<TokenizerModel>(model);
  for (const NamedId& n : kIds) s.*n.field = static_cast<int32_t>(head.at(n.name).as_int());
  for (const NamedFlag& n : kFlags) s.*n.field = head.at(n.name).as_bool();
  s.continuing_prefix = head.at("continuing_prefix").as_string();
  s.word_suffix = head.at("word_suffix").as_string();
  s.max_word_chars = head.at("max_word_chars").as_int();
  s.normalizer = head.at("normalizer");
  s.pre_tokenizer = head.at("pre_tokenizer");
  s.post_processor = head.at("post_processor");
  s.decoder = head.at("decoder");
  s.eog_ids = read_int_list(head.at("eog"));
  s.unmergeable = read_int_list(head.at("unmergeable"));
  s.chat_template = head.at("chat_template").as_string();
  for (const Value& pair : head.at("named_templates").as_array()) {
    if (pair.as_array().size() != 2)
      fail(ErrorCode::kCorrupt, "tokenizer: a named template is not a pair");
    s.named_templates.emplace_back(pair.as_array()[0].as_string(), pair.as_array()[1].as_string());
  }
}

}  // namespace

int64_t TokenizerSpec::vocab_size() const {
  auto size = static_cast<int64_t>(pieces.size());
  for (const AddedToken& t : added_tokens) size = std::max<int64_t>(size, int64_t{t.id} + 1);
  return size;
}

std::string_view TokenizerSpec::piece(int32_t id) const {
  for (const AddedToken& t : added_tokens)
    if (t.id == id) return t.content;
  if (id < 0 || static_cast<size_t>(id) >= pieces.size()) return {};
  return pieces[id];
}

std::string serialize_tokenizer(const TokenizerSpec& s) {
  Writer w;
  w.out_ = kMagic;
  w.text(dump_json(head_of(s)));
  w.u64(s.pieces.size());
  for (const std::string& p : s.pieces) w.text(p);
  w.u64(s.scores.size());
  for (double d : s.scores) {
    uint64_t bits;
    std::memcpy(&bits, &d, 8);
    w.u64(bits);
  }
  w.u64(s.merges.size());
  for (const BpeMerge& m : s.merges) {
    w.i32(m.left);
    w.i32(m.right);
    w.i32(m.result);
  }
  w.u64(s.added_tokens.size());
  for (const AddedToken& t : s.added_tokens) {
    w.i32(t.id);
    w.i32(t.special | t.lstrip << 1 | t.rstrip << 2 | t.single_word << 3 | t.normalized << 4);
    w.text(t.content);
  }
  return std::move(w.out_);
}

TokenizerSpec parse_tokenizer(std::string_view bytes) {
  Reader r(bytes);
  if (r.take(kMagic.size()) != kMagic) fail(ErrorCode::kCorrupt, "tokenizer: unknown form");
  TokenizerSpec s;
  try {
    read_head(parse_json(r.text(), "tokenizer"), s);
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "tokenizer: {}", e.what());
  }
  s.pieces.resize(r.count(8));
  for (std::string& p : s.pieces) p = r.text();
  s.scores.resize(r.count(8));
  for (double& d : s.scores) {
    const uint64_t bits = r.u64();
    std::memcpy(&d, &bits, 8);
  }
  s.merges.resize(r.count(12));
  for (BpeMerge& m : s.merges) {
    m.left = r.i32();
    m.right = r.i32();
    m.result = r.i32();
  }
  s.added_tokens.resize(r.count(16));
  for (AddedToken& t : s.added_tokens) {
    t.id = r.i32();
    const int32_t flags = r.i32();
    t.special = flags & 1;
    t.lstrip = flags & 2;
    t.rstrip = flags & 4;
    t.single_word = flags & 8;
    t.normalized = flags & 16;
    t.content = r.text();
  }
  if (!r.done()) fail(ErrorCode::kCorrupt, "tokenizer: bytes after the end");
  return s;
}

}  // namespace tokamak

#include "text/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/chat_guard.h"
#include "text/decoder.h"
#include "text/detokenizer.h"
#include "text/flat_maps.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

// The workspace of one encode call; borrowed from the pool, so that word caches stay warm.
struct Workspace {
  std::unique_ptr<ModelWorkspace> model;
  Words words;
  std::vector<AddedTokens::Part> raw_parts, parts;
  std::string normalized, unguarded;

  void trim() {  // do not keep the buffers of a huge text
    constexpr size_t kKeep = size_t{1} << 20;
    if (words.buffer.capacity() > kKeep) std::string().swap(words.buffer);
    if (normalized.capacity() > kKeep) std::string().swap(normalized);
    if (unguarded.capacity() > kKeep) std::string().swap(unguarded);
    if (words.spans.capacity() * sizeof(Words::Span) > kKeep)
      decltype(words.spans)().swap(words.spans);
    if (words.spare.capacity() * sizeof(Words::Span) > kKeep)
      decltype(words.spare)().swap(words.spare);
    if (parts.capacity() > kKeep / 32) decltype(parts)().swap(parts);
    if (raw_parts.capacity() > kKeep / 32) decltype(raw_parts)().swap(raw_parts);
  }
};

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec s) : spec(std::move(s)) {}

  TokenizerSpec spec;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  AddedTokens raw_tokens, normalized_tokens;
  bool normalized_special = false;  // one of normalized_tokens is special
  std::vector<int32_t> frame;
  PieceMap pieces;
  std::vector<int32_t> added_index;  // by id: index into spec.added_tokens, or -1
  // Added tokens that are searched in the normalised text are decoded in their normalised form.
  std::unordered_map<int32_t, std::string> normalized_pieces;

  std::mutex mutex;
  std::vector<std::unique_ptr<Workspace>> pool;

  void build();
  void build_model(bool byte_level);
  void build_added();
  void encode_text(std::string_view text, EncodeOptions options, Workspace& w,
                   std::vector<int32_t>& ids) const;
  void encode_valid(std::string_view text, bool first, bool joined, EncodeOptions options,
                    Workspace& w, std::vector<int32_t>& ids) const;
  void encode_section(std::string_view text, size_t first, bool joined, std::string_view guard,
                      Workspace& w, std::vector<int32_t>& ids) const;
  std::string normalized_mark(std::string_view mark) const;
  // The decoder's input for an id; empty: none.
  std::string_view decoded_piece(int32_t id) const {
    if (!normalized_pieces.empty())
      if (const auto found = normalized_pieces.find(id); found != normalized_pieces.end())
        return found->second;
    return piece(id);
  }
  // Decided by the text, as in the `tokenizers` package: a special token that the normalizer
  // changes is printed, and a token that it changes into a special one is not.
  bool skipped(int32_t id, const DecodeOptions& options) const {
    if (!options.skip_special || std::binary_search(options.keep.begin(), options.keep.end(), id))
      return false;
    const AddedToken* token = added(id);
    if (normalized_pieces.empty() || !token) return token && token->special;
    const std::string_view text = decoded_piece(id);
    return std::any_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                       [&](const AddedToken& t) { return t.special && t.content == text; });
  }
  std::string_view piece(int32_t id) const {
    if (const AddedToken* token = added(id)) return token->content;
    if (id < 0 || static_cast<size_t>(id) >= spec.pieces.size()) return {};
    return spec.pieces[id];
  }
  const AddedToken* added(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= added_index.size() || added_index[id] < 0)
      return nullptr;
    return &spec.added_tokens[added_index[id]];
  }
};

void Tokenizer::Impl::build_model(bool byte_level) {
  for (const BpeMerge& m : spec.merges)
    for (int32_t id : {m.left, m.right, m.result})
      if (id < 0 || static_cast<size_t>(id) >= spec.pieces.size())
        fail(ErrorCode::kInvalidArgument,
             "tokenizer: a merge refers to id {}, but there are {} pieces", id, spec.pieces.size());
  if (spec.merge_by_score && spec.scores.size() != spec.pieces.size())
    fail(ErrorCode::kInvalidArgument, "tokenizer: {} scores for {} pieces", spec.scores.size(),
         spec.pieces.size());
  const auto bounded = [&](int32_t id, const char* what) {
    if (id < kMissingUnk || id >= spec.vocab_size())
      fail(ErrorCode::kInvalidArgument,
           "tokenizer: the {} token has id {}, but there are {} pieces", what, id,
           spec.vocab_size());
  };
  bounded(spec.unk_id, "unknown");
  if (!std::is_sorted(spec.unmergeable.begin(), spec.unmergeable.end()))
    std::sort(spec.unmergeable.begin(), spec.unmergeable.end());
  switch (spec.model) {
    case TokenizerModel::kBpe:
      model = make_bpe_model(spec, byte_level);
      break;
    case TokenizerModel::kUnigram:
      model = make_unigram_model(spec);
      break;
    case TokenizerModel::kWordPiece:
      model = make_wordpiece_model(spec);
      break;
    case TokenizerModel::kWordLevel:
      model = make_wordlevel_model(spec);
      break;
  }
}

void Tokenizer::Impl::build_added() {
  added_index.assign(static_cast<size_t>(spec.vocab_size()), -1);
  std::vector<const AddedToken*> raw, normal;
  // Special tokens come first: they win over others with the same text.
  for (bool special : {true, false})
    for (size_t i = 0; i < spec.added_tokens.size(); ++i) {
      const AddedToken& t = spec.added_tokens[i];
      if (t.id < 0 || t.content.empty())
        fail(ErrorCode::kInvalidArgument, "tokenizer: added token without id or content");
      if (t.special != special) continue;
      added_index[t.id] = static_cast<int32_t>(i);
      (t.normalized ? normal : raw).push_back(&t);
      normalized_special = normalized_special || (t.normalized && t.special);
    }
  raw_tokens.build(raw, [](const std::string& content) { return content; });
  normalized_tokens.build(normal, [&](const std::string& content) {
    std::string text = content;
    if (normalizer && utf8_is_valid(text)) normalizer->apply(text, false);
    return text;
  });
  if (!normalizer) return;
  for (const AddedToken* t : normal) {
    std::string text = t->content;
    if (utf8_is_valid(text)) normalizer->apply(text, false);
    if (text != t->content) normalized_pieces.emplace(t->id, std::move(text));
  }
}

void Tokenizer::Impl::build() {
  if (spec.vocab_size() > int64_t{1} << 28)
    fail(ErrorCode::kInvalidArgument, "tokenizer: ids up to {}", spec.vocab_size());
  const auto part = [](const char* name, const auto& make) {  // names the part in errors
    try {
      make();
    } catch (const Error& e) {
      if (std::string_view(e.what()).starts_with("tokenizer")) throw;
      fail(e.code(), "tokenizer: {}: {}", name, e.what());
    }
  };
  part("normalizer", [&] { normalizer = make_normalizer(spec.normalizer); });
  bool byte_level = false;
  part("pre_tokenizer", [&] {
    if (spec.model == TokenizerModel::kBpe)
      byte_level = make_pre_tokenizer(spec.pre_tokenizer, true).byte_level;
  });
  part("model", [&] { build_model(byte_level); });
  part("pre_tokenizer",
       [&] { pre_tokenizer = make_pre_tokenizer(spec.pre_tokenizer, model->takes_bytes()).step; });
  build_added();
  part("post_processor", [&] { frame = make_frame(spec.post_processor); });
  pieces.build(spec.pieces);
  part("decoder", [&] { check_decoder(spec.decoder); });
  std::sort(spec.eog_ids.begin(), spec.eog_ids.end());
}

std::string Tokenizer::Impl::normalized_mark(std::string_view mark) const {
  std::string text(mark);
  if (normalizer && !mark.empty()) normalizer->apply(text, true);
  return text;
}

// guard: what became of the mark in the normalised text; empty: there is none.
void Tokenizer::Impl::encode_section(std::string_view text, size_t first, bool joined,
                                     std::string_view guard, Workspace& w,
                                     std::vector<int32_t>& ids) const {
  if (!guard.empty() && text.find(guard) != std::string_view::npos) {
    w.unguarded = without_guard(text, guard);
    text = w.unguarded;
  }
  w.words.start(text, first, joined);
  if (pre_tokenizer) pre_tokenizer->apply(w.words);
  for (const Words::Span s : w.words.spans)
    model->encode_word(w.words.text.substr(s.begin, s.end - s.begin), *w.model, ids);
}

// Valid UTF-8. Added tokens in the raw text, then the normalizer, then added tokens in its output.
void Tokenizer::Impl::encode_valid(std::string_view text, bool first, bool joined,
                                   EncodeOptions options, Workspace& w,
                                   std::vector<int32_t>& ids) const {
  const std::string guard = normalized_mark(options.guard);
  w.raw_parts.clear();
  raw_tokens.split(text, options.parse_special, w.raw_parts);
  for (size_t i = 0; i < w.raw_parts.size(); ++i) {
    const AddedTokens::Part part = w.raw_parts[i];
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    std::string_view section = text.substr(part.begin, part.end - part.begin);
    size_t start = first && part.begin == 0 ? utf8_sequence_length(section[0]) : 0;
    const bool section_joined = joined && part.begin == 0;
    if (normalizer) {
      w.normalized.assign(section);
      if (start > 0) {
        start = normalizer->apply_tracked(w.normalized, section_joined, start);
      } else {
        normalizer->apply(w.normalized, section_joined);
      }
      section = w.normalized;
    }
    if (normalized_tokens.empty()) {
      encode_section(section, start, section_joined, guard, w, ids);
      continue;
    }
    w.parts.clear();
    normalized_tokens.split(section, options.parse_special, w.parts);
    for (const AddedTokens::Part& p : w.parts) {
      if (p.id >= 0) {
        ids.push_back(p.id);
      } else {
        encode_section(section.substr(p.begin, p.end - p.begin),
                       p.begin < start ? std::min(start, p.end) - p.begin : 0,
                       section_joined && p.begin == 0, guard, w, ids);
      }
    }
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, EncodeOptions options, Workspace& w,
                                  std::vector<int32_t>& ids) const {
  bool first = true, joined = false;
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    if (good > 0) {
      encode_valid(text.substr(0, good), first, joined, options, w, ids);
      text.remove_prefix(good);
      first = false;
    }
    size_t bad = 0;
    while (bad < text.size() && !utf8_decode(text, bad).valid) ++bad;
    if (bad == 0) continue;
    model->encode_invalid(text.substr(0, bad), *w.model, ids);
    text.remove_prefix(bad);
    first = false;
    joined = true;
  }
}

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {
  impl_->build();
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::unique_ptr<Workspace> workspace;
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->pool.empty()) {
      workspace = std::move(impl_->pool.back());
      impl_->pool.pop_back();
    }
  }
  if (!workspace) {
    workspace = std::make_unique<Workspace>();
    workspace->model = impl_->model->make_workspace();
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (!options.add_special) {
    impl_->encode_text(text, options, *workspace, ids);
  } else {
    for (int32_t id : impl_->frame) {
      if (id == kTextPlace) {
        impl_->encode_text(text, options, *workspace, ids);
      } else {
        ids.push_back(id);
      }
    }
  }
  workspace->trim();
  const std::lock_guard lock(impl_->mutex);
  impl_->pool.push_back(std::move(workspace));
  return ids;
}

std::string Tokenizer::guard(std::string_view text, std::string_view mark) const {
  std::string raw, out;
  impl_->raw_tokens.guard(text, mark, raw);
  if (!impl_->normalized_special) return raw;
  impl_->normalized_tokens.guard(raw, mark, out);
  // A normalizer may create a token from other characters; then every character gets a mark.
  std::string normalized = out;
  if (impl_->normalizer && utf8_is_valid(normalized)) impl_->normalizer->apply(normalized, true);
  std::vector<AddedTokens::Part> parts;
  impl_->normalized_tokens.split(normalized, true, parts);
  if (std::none_of(parts.begin(), parts.end(), [&](const AddedTokens::Part& p) {
        return p.id >= 0 && impl_->added(p.id)->special;
      }))
    return out;
  out.clear();
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = utf8_decode(text, pos).length;
    out.append(text, pos, length).append(mark);
    pos += length;
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  PieceDecoder stream(impl_->spec.decoder, options.valid_utf8);
  if (options.continues) stream.skip_beginning();
  for (int32_t id : ids) {
    if (impl_->skipped(id, options)) continue;
    const std::string_view text = impl_->decoded_piece(id);
    if (!text.empty()) stream.push(text);
  }
  stream.finish();
  return stream.take();
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->added_index.size()); }
int32_t Tokenizer::bos_id() const { return impl_->spec.bos_id; }
int32_t Tokenizer::eos_id() const { return impl_->spec.eos_id; }
int32_t Tokenizer::pad_id() const { return impl_->spec.pad_id; }
int32_t Tokenizer::unk_id() const { return std::max(-1, impl_->spec.unk_id); }
bool Tokenizer::is_eog(int32_t id) const {
  return std::binary_search(impl_->spec.eog_ids.begin(), impl_->spec.eog_ids.end(), id);
}
bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = impl_->added(id);
  return token && token->special;
}
bool Tokenizer::has_text(std::span<const int32_t> ids) const {
  return std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return !is_special(id); });
}
std::string_view Tokenizer::piece(int32_t id) const { return impl_->piece(id); }
int32_t Tokenizer::find_piece(std::string_view piece) const {
  for (const AddedToken& token : impl_->spec.added_tokens)
    if (token.content == piece) return token.id;
  return impl_->pieces.find(piece);
}

std::string Tokenizer::piece_bytes(int32_t id) const {
  const std::string_view text = piece(id);
  if (text.empty()) return {};
  if (impl_->added(id)) return std::string(text);
  PieceDecoder stream(impl_->spec.decoder, false);
  stream.skip_beginning();
  stream.push(text);
  stream.finish();
  return stream.take();
}

const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DecodeOptions options)
    : tokenizer_(&tokenizer),
      options_(options),
      stream_(std::make_unique<PieceDecoder>(tokenizer.spec().decoder, options.valid_utf8)) {
  if (options.continues) stream_->skip_beginning();
}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(int32_t id) {
  if (tokenizer_->impl_->skipped(id, options_)) return {};
  const std::string_view text = tokenizer_->impl_->decoded_piece(id);
  if (text.empty()) return {};
  stream_->push(text);
  return stream_->take();
}

std::string Detokenizer::finish() {
  stream_->finish();
  return stream_->take();
}

}  // namespace tokamak

#include "engine/slots.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tokamak {
namespace {

std::vector<int32_t> indices(std::span<const BlockHandle> blocks) {
  std::vector<int32_t> out;
  for (BlockHandle block : blocks) out.push_back(block.index);
  return out;
}

}  // namespace

void Slots::note(int32_t slot, std::string_view salt, std::span<const int32_t> ids) {
  texts_[slot] = {std::string(salt), {ids.begin(), ids.end()}};
}

const Slots::Text& Slots::text(int32_t slot, std::string_view salt) const {
  auto it = texts_.find(slot);
  if (it == texts_.end() || it->second.salt != salt)
    fail(ErrorCode::kNotFound, "slot {} has no text: no request with this id_slot has ended", slot);
  return it->second;
}

SavedPrefix Slots::save(int32_t slot, std::string_view salt, KvCache& kv, Executable& executable) {
  const Text& text = this->text(slot, salt);
  PrefixHit hit;
  int64_t most = std::ssize(text.ids);
  do {  // a partly shared block is not the text's own
    most -= most % kv.unit();
    kv.find_prefix(salt, text.ids, most, hit);
  } while (hit.tokens % kv.unit() != 0 && (most = hit.tokens) > 0);
  SavedPrefix out;
  out.ids.assign(text.ids.begin(), text.ids.begin() + hit.tokens);
  for (size_t g = 0; g < kv.groups() && hit.tokens > 0; ++g) {
    std::vector<int32_t> blocks = indices(hit.groups[g].blocks);
    const size_t at = out.blocks.size();
    out.blocks.resize(at + blocks.size() * executable.block_bytes(static_cast<uint32_t>(g)));
    executable.wait(executable.read_blocks(static_cast<uint32_t>(g), blocks,
                                           std::span(out.blocks).subspan(at)));
  }
  return out;
}

void Slots::restore(int32_t slot, std::string_view salt, const SavedPrefix& saved, KvCache& kv,
                    Executable& executable) {
  const int64_t tokens = std::ssize(saved.ids);
  if (tokens == 0 || tokens % kv.unit() != 0 || kv.index() == nullptr)
    fail(ErrorCode::kCorrupt, "{} tokens cannot be restored", tokens);
  SequenceBlocks seq;
  kv.open(seq, tokens);
  PrefixHit none;
  none.groups.resize(kv.groups());
  kv.start(seq, salt, saved.ids, none);
  uint64_t bytes = 0;
  for (size_t g = 0; g < kv.groups(); ++g) {
    const GroupEntry& group = kv.group(g);
    SequenceBlocks::Table& table = seq.tables[g];
    table.dropped = first_visible(group, tokens) / group.block_size;
    table.blocks.resize(static_cast<size_t>(table.dropped));
    bytes += static_cast<uint64_t>(tokens / group.block_size - table.dropped) *
             executable.block_bytes(static_cast<uint32_t>(g));
  }
  const bool fits = saved.blocks.size() == bytes;
  const bool room = fits && kv.reserve(seq, tokens);
  for (size_t g = 0, at = 0; room && g < kv.groups(); ++g) {
    const SequenceBlocks::Table& table = seq.tables[g];
    std::vector<int32_t> blocks =
        indices(std::span(table.blocks).subspan(static_cast<size_t>(table.dropped)));
    const size_t size = blocks.size() * executable.block_bytes(static_cast<uint32_t>(g));
    executable.wait(executable.write_blocks(static_cast<uint32_t>(g), blocks,
                                            std::span(saved.blocks).subspan(at, size)));
    at += size;
  }
  if (room) kv.commit(seq, tokens, saved.ids);
  kv.release(seq);
  if (!fits) fail(ErrorCode::kCorrupt, "{} bytes are not {} tokens", saved.blocks.size(), tokens);
  if (!room) fail(ErrorCode::kResourceExhausted, "the KV cache has no room for {} tokens", tokens);
  note(slot, salt, saved.ids);
}

int64_t Slots::erase(int32_t slot, std::string_view salt, KvCache& kv) {
  const Text& text = this->text(slot, salt);
  const int64_t tokens = std::ssize(text.ids);
  kv.forget(salt, text.ids);
  texts_.erase(slot);
  return tokens;
}

}  // namespace tokamak

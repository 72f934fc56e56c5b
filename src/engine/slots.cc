#include "engine/slots.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tokamak {
namespace {

// What is copied between two steps.
constexpr uint64_t kPieceBytes = 4 << 20;
constexpr uint64_t kPieceBlocks = 16;

void list_blocks(SlotCopy& copy, const Executable& executable) {
  for (const SequenceBlocks::Table& table : copy.held.tables) {
    auto g = static_cast<uint32_t>(copy.blocks.size());
    std::vector<int32_t>& list = copy.blocks.emplace_back();
    for (auto b = static_cast<size_t>(table.dropped); b < table.blocks.size(); ++b)
      list.push_back(table.blocks[b].index);
    copy.bytes += list.size() * executable.block_bytes(g);
  }
}

template <class Transfer>
bool next_piece(SlotCopy& copy, Executable& executable, Transfer&& transfer) {
  for (; copy.group < copy.blocks.size(); ++copy.group, copy.done = 0) {
    std::span<const int32_t> left = std::span(copy.blocks[copy.group]).subspan(copy.done);
    if (left.empty()) continue;
    auto g = static_cast<uint32_t>(copy.group);
    const uint64_t one = executable.block_bytes(g);
    const uint64_t few = std::clamp<uint64_t>(kPieceBytes / one, 1, kPieceBlocks);
    const size_t count = std::min<uint64_t>(few, left.size());
    executable.wait(transfer(g, left.first(count), copy.at, count * one));
    copy.done += count;
    copy.at += count * one;
    return true;
  }
  return false;
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

SlotCopy Slots::begin_save(int32_t slot, std::string_view salt, KvCache& kv,
                           const Executable& executable) {
  const Text& text = this->text(slot, salt);
  PrefixHit hit;
  int64_t most = std::ssize(text.ids);
  do {  // a partly shared block is not the text's own
    most -= most % kv.unit();
    kv.find_prefix(salt, text.ids, most, hit);
  } while (hit.tokens % kv.unit() != 0 && (most = hit.tokens) > 0);
  SlotCopy out;
  out.ids.assign(text.ids.begin(), text.ids.begin() + hit.tokens);
  kv.open(out.held, hit.tokens);
  kv.start(out.held, salt, out.ids, hit);
  list_blocks(out, executable);
  return out;
}

SlotCopy Slots::begin_restore(std::string_view salt, const SavedPrefix& saved, KvCache& kv,
                              const Executable& executable) {
  const int64_t tokens = std::ssize(saved.ids);
  if (tokens == 0 || tokens % kv.unit() != 0 || kv.index() == nullptr)
    fail(ErrorCode::kCorrupt, "{} tokens cannot be restored", tokens);
  SlotCopy out;
  out.ids = saved.ids;
  kv.open(out.held, tokens);
  PrefixHit none;
  none.groups.resize(kv.groups());
  kv.start(out.held, salt, saved.ids, none);
  uint64_t bytes = 0;
  for (size_t g = 0; g < kv.groups(); ++g) {
    const GroupEntry& group = kv.group(g);
    SequenceBlocks::Table& table = out.held.tables[g];
    table.dropped = first_visible(group, tokens) / group.block_size;
    table.blocks.resize(static_cast<size_t>(table.dropped));
    bytes += static_cast<uint64_t>(tokens / group.block_size - table.dropped) *
             executable.block_bytes(static_cast<uint32_t>(g));
  }
  const bool fits = saved.blocks.size() == bytes;
  const bool room = fits && kv.reserve(out.held, tokens);
  if (!room) end(out, kv);
  if (!fits) fail(ErrorCode::kCorrupt, "{} bytes are not {} tokens", saved.blocks.size(), tokens);
  if (!room) fail(ErrorCode::kResourceExhausted, "the KV cache has no room for {} tokens", tokens);
  list_blocks(out, executable);
  return out;
}

bool Slots::save_some(SlotCopy& copy, Executable& executable, std::span<std::byte> bytes) {
  return next_piece(copy, executable, [&](uint32_t g, auto blocks, uint64_t at, uint64_t size) {
    return executable.read_blocks(g, blocks, bytes.subspan(at, size));
  });
}

bool Slots::restore_some(SlotCopy& copy, Executable& executable, std::span<const std::byte> bytes) {
  return next_piece(copy, executable, [&](uint32_t g, auto blocks, uint64_t at, uint64_t size) {
    return executable.write_blocks(g, blocks, bytes.subspan(at, size));
  });
}

void Slots::note_restored(int32_t slot, std::string_view salt, SlotCopy& copy, KvCache& kv) {
  kv.commit(copy.held, std::ssize(copy.ids), copy.ids);
  note(slot, salt, copy.ids);
}

int64_t Slots::erase(int32_t slot, std::string_view salt, KvCache& kv) {
  const Text& text = this->text(slot, salt);
  const int64_t tokens = std::ssize(text.ids);
  kv.forget(salt, text.ids);
  texts_.erase(slot);
  return tokens;
}

}  // namespace tokamak

#include "plan/bundle.h"

#include <atomic>
#include <charconv>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "plan/bundle_plans.h"

namespace tokamak {
namespace {

constexpr uint64_t kLargePart = 64 << 10;  // begins on a page of its own

// What two weights must have in common to be the same bytes: all but the name and the layout.
std::string identity_of(const WeightEntry& entry) {
  std::string out = fmt::format("{}[", dtype_name(entry.dtype));
  for (int64_t d : entry.dims) out += fmt::format("{},", d);
  return out + "] " + recipe_to_text(entry.recipe);
}

Checksum parse_sum(const std::string& hex, const BundleFile& file) {
  Checksum sum;
  const char* p = hex.data();
  bool ok = hex.size() == 32;
  if (ok) ok = std::from_chars(p, p + 16, sum.high, 16).ptr == p + 16;
  if (ok) ok = std::from_chars(p + 16, p + 32, sum.low, 16).ptr == p + 32;
  if (!ok) file.damaged("its index has an invalid checksum");
  return sum;
}

struct PartName {
  const char* name;
  std::span<const std::byte> PackedWeight::*field;
};
constexpr PartName kParts[] = {{"matrix", &PackedWeight::matrix},
                               {"plain", &PackedWeight::plain},
                               {"rows", &PackedWeight::rows}};

}  // namespace

BundleModel::BundleModel(std::shared_ptr<const BundleFile> file) : file_(std::move(file)) {
  try {
    meta_ = parse_json(file_->text(kBundleMeta), "meta");
    target_ = {meta_.at("backend").as_string(), meta_.at("isa").as_string(),
               meta_.at("packing").as_string()};
    meta_.at("metadata");
    if (const Value* embedding = meta_.find("embedding")) embedding_ = parse_embedding(*embedding);
    tokenizer_ = parse_tokenizer(file_->text(kBundleTokenizer));
    read_index();
  } catch (const Error& e) {
    std::string_view what = e.what();
    if (what.starts_with(file_->name())) throw;
    file_->damaged(what);
  }
  try {
    plans_ = parse_plans(file_->section(kBundlePlans));
    check_plan_set(plans_);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) file_->damaged(e.what());
    plans_ = {};
    why_unreadable_ = e.what();
    return;
  }
  check_weights(plans_);
  compiled_context_ = plans_.context;
}

void BundleModel::read_index() {
  auto weights = file_->section(kBundleWeights);
  const Value index = parse_json(file_->text(kBundleIndex), "index");
  for (const Value& row : index.as_array()) {
    Entry entry;
    entry.identity = row.at("identity").as_string();
    for (const PartName& part : kParts) {
      const Value* v = row.find(part.name);
      if (!v) continue;
      int64_t offset = v->at("offset").as_int(), size = v->at("size").as_int();
      auto limit = static_cast<int64_t>(weights.size());
      if (offset < 0 || size < 0 || offset > limit || size > limit - offset ||
          offset % static_cast<int64_t>(kBundleAlignment) != 0)
        file_->damaged(
            fmt::format("weight {} extends beyond the file", row.at("name").as_string()));
      Part p{weights.subspan(static_cast<size_t>(offset), static_cast<size_t>(size)),
             parse_sum(v->at("sum").as_string(), *file_)};
      entry.packed.*part.field = p.bytes;
      entry.parts.push_back(p);
    }
    if (!entries_
             .try_emplace({row.at("name").as_string(), row.at("layout").as_string()},
                          std::move(entry))
             .second)
      file_->damaged(fmt::format("weight {} appears twice", row.at("name").as_string()));
  }
}

void BundleModel::check_weights(const PlanSet& plans) const {
  for (const WeightEntry& w : plans.weights) {
    if (!w.constant.empty()) continue;
    auto it = entries_.find(std::pair(w.name, w.layout));
    if (it == entries_.end() || it->second.identity != identity_of(w))
      fail(ErrorCode::kUnsupported,
           "{}: the plans need weight {} as this bundle does not hold it; compile the model again "
           "from its file",
           file_->name(), w.name);
  }
}

void BundleModel::replace_plans(PlanSet plans) {
  check_weights(plans);
  plans_ = std::move(plans);
  compiled_context_ = plans_.context;
  why_unreadable_.clear();
}

void BundleModel::verify_weights() const {
  std::vector<std::pair<const std::string*, const Part*>> parts;
  for (const auto& [key, entry] : entries_)
    for (const Part& part : entry.parts) parts.emplace_back(&key.first, &part);
  std::atomic<size_t> next{0};
  std::mutex mutex;
  const std::string* wrong = nullptr;
  auto work = [&] {
    for (size_t i; (i = next++) < parts.size();) {
      if (checksum(parts[i].second->bytes) == parts[i].second->sum) continue;
      std::lock_guard lock(mutex);
      wrong = parts[i].first;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::min(16u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  if (wrong) file_->damaged(fmt::format("the checksum of weight {} differs", *wrong));
}

std::vector<std::string> BundleModel::names() const {
  std::vector<std::string> out;
  for (const auto& [key, entry] : entries_) out.push_back(key.first);
  return out;
}

const PackedWeight* BundleModel::packed(std::string_view name, std::string_view layout) const {
  auto it = entries_.find(std::pair(std::string(name), std::string(layout)));
  return it == entries_.end() ? nullptr : &it->second.packed;
}

// --- writing

BundleWriter::BundleWriter(const std::filesystem::path& path) : file_(path) {
  file_.begin_section(std::string(kBundleWeights), kBundlePage, BundleSection::kPartsChecked);
}

void BundleWriter::add_weight(const WeightEntry& entry, const PackedWeight& packed) {
  Value row = Value::Object{
      {"name", entry.name}, {"layout", entry.layout}, {"identity", identity_of(entry)}};
  for (const PartName& part : kParts) {
    std::span<const std::byte> bytes = packed.*part.field;
    if (bytes.empty()) continue;
    uint64_t offset =
        file_.append(bytes, bytes.size() >= kLargePart ? kBundlePage : kBundleAlignment);
    row.set(part.name, Value::Object{{"offset", offset},
                                     {"size", uint64_t{bytes.size()}},
                                     {"sum", checksum(bytes).hex()}});
    weight_bytes_ += bytes.size();
  }
  index_.push(std::move(row));
}

void BundleWriter::finish(const Value& meta, std::string_view graph, const PlanSet& plans,
                          const TokenizerSpec& tokenizer) {
  file_.add_section(std::string(kBundleIndex), dump_json(index_));
  file_.add_section(std::string(kBundlePlans), serialize_plans(plans));
  file_.add_section(std::string(kBundleTokenizer), serialize_tokenizer(tokenizer));
  file_.add_section(std::string(kBundleGraph), graph);
  file_.add_section(std::string(kBundleMeta), dump_json(meta));
  file_.finish();
}

}  // namespace tokamak

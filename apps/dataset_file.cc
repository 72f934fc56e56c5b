#include "apps/dataset_file.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

constexpr size_t kLargestFile = size_t{4} << 30;

void add_conversation(const Value& item, const std::string& where, std::vector<DatasetEntry>& out) {
  const Value* turns = item.find("conversations");
  if (turns == nullptr) turns = item.find("conversation");
  if (turns == nullptr || !turns->is_array())
    fail(ErrorCode::kCorrupt, "{} has no conversations", where);
  const Value::Array& list = turns->as_array();
  if (list.size() < 2) return;
  std::string from = list[0].get_string("from", "");
  if (from != "human" && from != "user") return;
  out.push_back({list[0].get_string("value", ""), list[1].get_string("value", ""), 0});
}

}  // namespace

std::vector<DatasetEntry> load_dataset(const std::filesystem::path& path) {
  bool lines = path.extension() == ".jsonl";
  if (!lines && path.extension() != ".json")
    fail(ErrorCode::kInvalidArgument,
         "{}: a dataset is a .json (ShareGPT) or a .jsonl file with prompts", path.string());
  std::string text = read_text_file(path, kLargestFile), name = path.filename().string();
  std::vector<DatasetEntry> out;
  if (!lines) {
    Value file = parse_json(text, name);
    if (!file.is_array()) fail(ErrorCode::kCorrupt, "{} is not a list of conversations", name);
    for (size_t i = 0; i < file.size(); ++i)
      add_conversation(file.as_array()[i], fmt::format("{}: entry {}", name, i), out);
  }
  std::string_view rest = lines ? std::string_view(text) : std::string_view();
  for (int64_t number = 1; !rest.empty(); ++number) {
    size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string where = fmt::format("{}, line {}", name, number);
    Value entry = parse_json(line, where);
    std::string prompt = entry.is_object() ? entry.get_string("prompt", "") : "";
    if (prompt.empty()) fail(ErrorCode::kCorrupt, "{} has no prompt", where);
    out.push_back({std::move(prompt), "", entry.get_int("output_tokens", 0)});
  }
  if (out.empty()) fail(ErrorCode::kCorrupt, "{} has no prompts", path.string());
  return out;
}

}  // namespace tokamak

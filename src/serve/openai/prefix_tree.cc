// The cached prefixes of a model as JSON, for the page and for operators.
#include <algorithm>
#include <mutex>

#include "base/rng.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "text/detokenizer.h"

namespace tokamak::openai {
namespace {

constexpr int64_t kMostIndexNodes = 20'000;  // a few milliseconds of the engine's time
constexpr size_t kMostNodes = 2'000, kMostText = 200;

// A hash whose key differs in each run, so that it names a prefix and guesses cannot be checked.
uint64_t mixed(uint64_t state, uint64_t value) {
  static const uint64_t key = fresh_number();
  auto bits = philox(key, state, value);
  return uint64_t{bits[0]} << 32 | bits[1];
}

std::string beginning(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer text(tokenizer, {.skip_special = false});
  std::string out;
  for (int32_t id : ids) {
    out += text.push(id);
    if (out.size() > kMostText) return out + "…";
  }
  return out;
}

}  // namespace

// Prompts are shown to the key that sent them, and to the administrator.
http::Response Api::prefixes(const http::Request& request) {
  auto served = model(request.parameter);
  const bool admin = admin_.find(key_of(request)) != nullptr;
  const std::string tenant = tenant_of(request);
  auto shown = [&](const std::string& salt) {
    if (admin) return true;
    const std::string own = salt_of(tenant, "");
    return !tenant.empty() && (salt == own || salt.starts_with(own + "\n"));
  };
  std::unique_lock reading(tree_mutex_, std::try_to_lock);  // it may take as long as a step
  if (!reading)
    throw ApiError(429, "Another request is reading the tree: try again.", "", "busy")
        .with_retry_after(1);
  PrefixTree tree = served->client->prefix_tree(kMostIndexNodes);
  reading.unlock();
  Value nodes = Value::array();
  std::vector<uint64_t> states(tree.nodes.size());
  std::vector<bool> told(tree.nodes.size());
  int64_t left_out = tree.left_out;
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const PrefixTreeNode& node = tree.nodes[i];
    const bool root = node.parent < 0;
    const auto parent = static_cast<size_t>(root ? 0 : node.parent);
    told[i] = root ? shown(node.salt) : told[parent];
    if (nodes.size() >= kMostNodes) {
      left_out += std::ssize(node.ids) / std::max(1, tree.unit);
      continue;
    }
    states[i] = root ? mixed(0, std::hash<std::string>()(node.salt)) : states[parent];
    for (int32_t id : node.ids) states[i] = mixed(states[i], static_cast<uint64_t>(id));
    Value value = Value::object();
    value.set("parent", root ? Value() : Value(static_cast<int64_t>(parent)));
    value.set("hash", fmt::format("{:012x}", states[i] >> 16));
    value.set("first", node.first);
    value.set("tokens", std::ssize(node.ids));
    value.set("blocks", node.blocks);
    value.set("cached_blocks", node.cached);
    value.set("references", node.references);
    value.set("producing", node.producing);
    value.set("ended_since_use", node.ended_since);
    if (told[i] && !root) value.set("text", beginning(*served->tokenizer, node.ids));
    nodes.push(std::move(value));
  }
  return http::json_response(Value::Object{{"model", served->name},
                                           {"unit", tree.unit},
                                           {"nodes", std::move(nodes)},
                                           {"left_out", left_out}});
}

}  // namespace tokamak::openai

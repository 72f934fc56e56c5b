#include "text/grammar/json_references.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

#include "text/grammar/json_conjunction.h"

namespace tokamak::grammar {
namespace {

constexpr int kMaxDepth = 200;

bool is_hex(char c) {
  return std::string_view("0123456789abcdefABCDEF").find(c) != std::string_view::npos;
}

std::string unescape_pointer(std::string_view part) {
  std::string text, out;
  for (size_t i = 0; i < part.size(); ++i)
    if (part[i] == '%' && i + 2 < part.size() && is_hex(part[i + 1]) && is_hex(part[i + 2]))
      text += static_cast<char>(
          std::stoi(std::string(part.substr(std::exchange(i, i + 2) + 1, 2)), nullptr, 16));
    else
      text += part[i];
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '~' && i + 1 < text.size() && (text[i + 1] == '0' || text[i + 1] == '1'))
      out += text[++i] == '0' ? '~' : '/';
    else
      out += text[i];
  return out;
}

std::string escape_pointer(std::string_view name) {
  std::string out;
  for (char c : name)
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else if (c == '%')
      out += "%25";
    else
      out += c;
  return out;
}

// The length of "http:"; 0: a relative reference.
size_t scheme_length(std::string_view uri) {
  size_t colon = uri.find(':');
  if (colon == std::string_view::npos || colon == 0 || !std::isalpha(uri[0] & 0x7f)) return 0;
  for (char c : uri.substr(0, colon))
    if (!std::isalnum(c & 0x7f) && c != '+' && c != '-' && c != '.') return 0;
  return colon + 1;
}

// The length of "http://host"; a URI without a host has only its scheme.
size_t origin_length(std::string_view uri) {
  size_t at = scheme_length(uri);
  if (!uri.substr(at).starts_with("//")) return at;
  return std::min(uri.find('/', at + 2), uri.size());
}

std::string without_dots(std::string_view path) {
  std::vector<std::string_view> parts;
  for (size_t pos = 0; pos <= path.size();) {
    size_t end = std::min(path.find('/', pos), path.size());
    std::string_view part = path.substr(pos, end - pos);
    if (part == ".." && parts.size() > 1) parts.pop_back();
    if (part != "." && part != "..") parts.push_back(part);
    pos = end + 1;
  }
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) out.append(i == 0 ? "" : "/").append(parts[i]);
  return out;
}

// RFC 3986, without queries; `reference` has no fragment.
std::string resolve_uri(const std::string& base, const std::string& reference) {
  if (reference.empty()) return base;
  if (scheme_length(reference) > 0) return reference;
  if (reference.starts_with("//")) return base.substr(0, scheme_length(base)) + reference;
  size_t origin = origin_length(base);
  if (reference.starts_with("/")) return base.substr(0, origin) + without_dots(reference);
  size_t slash = base.rfind('/');
  size_t folder = slash == std::string::npos || slash + 1 < origin ? origin : slash + 1;
  return base.substr(0, origin) +
         without_dots(base.substr(origin, std::max(folder, origin) - origin) + reference);
}

std::pair<std::string, std::string> split_fragment(const std::string& uri) {
  size_t hash = std::min(uri.find('#'), uri.size());
  return {uri.substr(0, hash), uri.substr(std::min(hash + 1, uri.size()))};
}

bool is_plain(const Value& schema, int depth) {
  if (depth > kMaxDepth) schema_error("#", "", "is nested too deeply");
  if (schema.is_array())
    return std::all_of(schema.as_array().begin(), schema.as_array().end(),
                       [&](const Value& part) { return is_plain(part, depth + 1); });
  if (!schema.is_object()) return true;
  bool plain = true;  // the depth is checked everywhere
  for (const auto& [key, value] : schema.as_object()) {
    if (value.is_string()) {
      bool pointer = value.as_string() == "#" || value.as_string().starts_with("#/");
      plain &= key != "$ref" || pointer;
      plain &= key != "$id" && key != "$dynamicRef" && key != "$recursiveRef";
    }
    plain &= is_plain(value, depth + 1);
  }
  return plain;
}

// Owner: with_plain_references(). Places are JSON pointers.
class Resources {
 public:
  Resources(Value& root, bool old_draft) : root_(root), old_draft_(old_draft) {
    known_.emplace("", "");
    visit(root, "", "", false);
    for (const Site& site : sites_) rewrite(site);
  }

 private:
  struct Site {
    Value* schema;
    std::string base;
  };

  // Subschemas come before their owner, so that places of sites stay where they are.
  void visit(Value& schema, const std::string& place, std::string base, bool is_map) {
    if (schema.is_array())
      for (size_t i = 0; i < schema.size(); ++i)
        visit(schema.as_array()[i], place + "/" + std::to_string(i), base, false);
    if (!schema.is_object()) return;
    auto text = [&](const char* key) {
      const Value* v = is_map ? nullptr : schema.find(key);
      return v != nullptr && v->is_string() ? v->as_string() : std::string();
    };
    const bool only_ref = old_draft_ && !text("$ref").empty();
    if (std::string id = text("$id"); !id.empty() && !only_ref) {
      auto [uri, fragment] = split_fragment(id);
      base = resolve_uri(base, uri);
      if (fragment.empty()) known_.emplace(base, place);
      if (!fragment.empty()) known_.emplace(base + "#" + fragment, place);
      if (place.empty()) root_uri_ = base;
      ++resources_;
    }
    if (std::string name = text("$anchor"); !name.empty()) known_.emplace(base + "#" + name, place);
    if (std::string name = text("$dynamicAnchor"); !name.empty()) {
      known_.emplace(base + "#" + name, place);
      dynamic_[name].emplace(base, place);
    }
    for (auto& [key, value] : schema.as_object()) {
      if (!is_map && (key == "enum" || key == "const" || key == "default" || key == "examples"))
        continue;
      bool map = !is_map && (key == "properties" || key == "patternProperties" || key == "$defs" ||
                             key == "definitions" || key == "dependentSchemas");
      visit(value, place + "/" + escape_pointer(key), base, map);
    }
    if (!is_map) sites_.push_back({&schema, base});
  }

  // The place of a reference; nullopt: it is not in this document.
  std::optional<std::string> find(const std::string& reference, const std::string& base) const {
    auto [uri, fragment] = split_fragment(reference);
    uri = resolve_uri(base, uri);
    const bool pointer = fragment.empty() || fragment[0] == '/';
    auto known = known_.find(pointer ? uri : uri + "#" + fragment);
    if (known == known_.end()) return std::nullopt;
    std::string place = known->second + (pointer ? fragment : "");
    return find_pointer(root_, place) == nullptr ? std::nullopt : std::optional(place);
  }

  // The outermost resource that was entered decides; the document itself always was.
  std::optional<std::string> find_dynamic(const std::string& reference,
                                          const std::string& base) const {
    std::optional<std::string> place = find(reference, base);
    std::string name = split_fragment(reference).second;
    auto named = dynamic_.find(name);
    if (!place || named == dynamic_.end()) return place;
    const auto& places = named->second;
    if (std::none_of(places.begin(), places.end(), [&](auto& p) { return p.second == *place; }))
      return place;  // a usual anchor
    if (auto root = places.find(root_uri_); root != places.end()) return root->second;
    return places.size() == 1 ? place : std::nullopt;
  }

  void rewrite(const Site& site) {
    Value::Object& members = site.schema->as_object();
    for (size_t i = 0; i < members.size(); ++i) {
      auto& [key, value] = members[i];
      if (!value.is_string()) continue;
      std::optional<std::string> place;
      if (key == "$ref") place = find(value.as_string(), site.base);
      if (key == "$dynamicRef") place = find_dynamic(value.as_string(), site.base);
      if (key == "$recursiveRef" && resources_ <= 1) place = find(value.as_string(), site.base);
      if (!place) continue;
      value = Value("#" + *place);
      if (key == "$ref") continue;
      if (!site.schema->has("$ref")) {
        key = "$ref";
        continue;
      }
      Value ref = Value::Object{{"$ref", value}};
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(i--));
      Value* parts = site.schema->find("allOf");
      if (parts != nullptr && parts->is_array())
        parts->push(std::move(ref));
      else if (parts == nullptr)
        site.schema->set("allOf", Value::Array{std::move(ref)});
    }
  }

  Value& root_;
  const bool old_draft_;
  std::string root_uri_;
  size_t resources_ = 0;
  std::map<std::string, std::string> known_;  // a URI, or one with an anchor: its place
  std::map<std::string, std::map<std::string, std::string>> dynamic_;  // name, resource: place
  std::vector<Site> sites_;
};

}  // namespace

const Value* find_pointer(const Value& root, std::string_view pointer) {
  const Value* at = &root;
  for (size_t pos = 0; pos < pointer.size() && at != nullptr;) {
    size_t end = std::min(pointer.find('/', pos + 1), pointer.size());
    std::string part = unescape_pointer(pointer.substr(pos + 1, end - pos - 1));
    const Value* next = at->find(part);
    if (at->is_array() && !part.empty() && part.size() < 8 &&
        part.find_first_not_of("0123456789") == std::string::npos &&
        static_cast<size_t>(std::stoi(part)) < at->size())
      next = &at->as_array()[static_cast<size_t>(std::stoi(part))];
    at = next;
    pos = end;
  }
  return at;
}

std::optional<Value> with_plain_references(const Value& document, bool old_draft) {
  if (is_plain(document, 0)) return std::nullopt;
  std::optional<Value> out = document;
  Resources(*out, old_draft);
  return out;
}

}  // namespace tokamak::grammar

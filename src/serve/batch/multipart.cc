#include "serve/batch/multipart.h"

#include <algorithm>
#include <cctype>

#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

constexpr size_t kMaxParts = 64;

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// The value of a parameter in "form-data; name=\"file\"; filename=\"a;b.jsonl\"": a token or a
// quoted string, in which \ escapes the next character.
std::string parameter(std::string_view header, std::string_view name) {
  size_t at = header.find(';');
  while (at < header.size()) {
    size_t equals = header.find('=', ++at);
    if (equals == std::string_view::npos) return "";
    std::string_view key = trimmed(header.substr(at, equals - at));
    std::string value;
    at = equals + 1;
    if (at < header.size() && header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      at = header.find(';', at);
    } else {
      size_t end = std::min(header.find(';', at), header.size());
      value = trimmed(header.substr(at, end - at));
      at = end;
    }
    if (same_letters(key, name)) return value;
  }
  return "";
}

FormPart parse_part(std::string_view head, std::string_view content) {
  FormPart part;
  part.content = content;
  while (!head.empty()) {
    size_t end = std::min(head.find("\r\n"), head.size());
    std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    size_t colon = line.find(':');
    if (colon == std::string_view::npos ||
        !same_letters(line.substr(0, colon), "content-disposition"))
      continue;
    part.name = parameter(line, "name");
    part.filename = parameter(line, "filename");
  }
  if (part.name.empty())
    bad_request("", "invalid_form", "A part of the form has no name in its Content-Disposition.");
  return part;
}

}  // namespace

std::vector<FormPart> parse_multipart(std::string_view content_type, std::string_view body) {
  if (!same_letters(content_type.substr(0, 19), "multipart/form-data"))
    bad_request("", "invalid_form", "Expected Content-Type: multipart/form-data.");
  std::string boundary = parameter(content_type, "boundary");
  if (boundary.empty() || boundary.size() > 70)
    bad_request("", "invalid_form", "The boundary in Content-Type is missing or too long.");
  const std::string mark = "\r\n--" + boundary;
  std::vector<FormPart> parts;
  // The first boundary may be at the very beginning.
  size_t at =
      body.starts_with(std::string_view(mark).substr(2)) ? mark.size() - 2 : body.find(mark);
  if (at == std::string_view::npos)
    bad_request("", "invalid_form", "The form does not contain its boundary.");
  if (at != mark.size() - 2) at += mark.size();
  while (body.substr(at, 2) != "--") {
    size_t line = body.find("\r\n", at);
    size_t head_end = line == std::string_view::npos ? line : body.find("\r\n\r\n", line);
    size_t end = head_end == std::string_view::npos ? head_end : body.find(mark, head_end + 2);
    if (end == std::string_view::npos)
      bad_request("", "invalid_form", "The form ends without its closing boundary.");
    if (parts.size() == kMaxParts)
      bad_request("", "invalid_form", "The form has more than {} parts.", kMaxParts);
    std::string_view head = body.substr(line + 2, head_end - std::min(head_end, line + 2));
    size_t content = std::min(head_end + 4, end);
    parts.push_back(parse_part(head, body.substr(content, end - content)));
    at = end + mark.size();
  }
  return parts;
}

}  // namespace tokamak::openai

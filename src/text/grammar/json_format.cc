#include "text/grammar/json_format.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "base/error.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

// Regular expressions as in ECMAScript and Python alike, with groups up to two deep and without
// references to groups, look-behind and ranges between other than letters and digits.
std::string regex_regex() {
  std::string ranges;
  for (std::string_view row :
       {"0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
    for (char first : row) ranges += fmt::format("{0}-[{0}-{1}]|", first, row.back());
  const std::string escape = R"(\\[dDwWsSnrtfv\\^$.|?*+()\[\]{}/-])";
  const std::string char_class = R"(\[\^?()" + ranges + escape + R"(|[^\\\]\[^\-])+-?\])";
  const std::string often = R"(([*+?]|\{([0-9]{1,3},?|0,[0-9]{1,3}|1,[1-9][0-9]{0,2})\})\??)";
  const std::string single = R"(([^\\^$.|?*+()\[\]{}]|\.|)" + escape + "|" + char_class + ")";
  std::string inner;
  for (int depth = 0; depth <= 2; ++depth) {
    std::string atom = single, piece;
    if (depth > 0) atom = "(" + single + R"(|\((\?:)?)" + inner + R"(\)))";
    piece = "(" + atom + "(" + often + R"()?|\^|\$|\\[bB])";
    if (depth > 0) piece += R"(|\(\?[=!])" + inner + R"(\))";
    inner = "(" + piece + "|\\|)*)";
  }
  return inner;
}

// RFC 6570
std::string template_regex() {
  const std::string letter = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
  const std::string variable = letter + "(\\.?" + letter + ")*(:[1-9][0-9]{0,3}|\\*)?";
  return "([!#$&(-;=?-Z\\[\\]_a-z~]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?" + variable + "(," + variable +
         ")*\\})*";
}

std::string date_regex() {
  const std::string year = "([1-9][0-9]{3})";
  // Days by month; the 29th of February in years that are divisible by 4 and not by 100.
  const std::string leap = "([1-9][0-9](0[48]|[2468][048]|[13579][26]))";
  return "((" + year +
         "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-"
         "9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))|(" +
         leap + "-02-29))";
}

constexpr const char* kLocalTime = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?";

std::string ipv4_regex() {
  const std::string octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return octet + "(\\." + octet + "){3}";
}

std::string ipv6_regex() {
  const std::string h16 = "[0-9a-fA-F]{1,4}";
  return "((" + h16 + ":){7}" + h16 + "|(" + h16 + ":){1,6}:" + h16 + "|(" + h16 +
         ":){1,5}(:" + h16 + "){2}|(" + h16 + ":){1,4}(:" + h16 + "){3}|::|::" + h16 + "(:" + h16 +
         "){0,6})";
}

std::string uuid_regex(const char* version) {
  return fmt::format(
      "[0-9a-f]{{8}}-[0-9a-f]{{4}}-{}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}", version);
}

using Formats = std::map<std::string, std::string>;

Formats standard_formats() {
  const std::string date = date_regex(), ipv4 = ipv4_regex(), ipv6 = ipv6_regex();
  const std::string time = fmt::format("({}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))", kLocalTime);
  const std::string label = "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,18}){0,2}";
  const std::string host = "(" + label + "(\\." + label + "){0,3})";
  const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  const std::string path = "(/" + pchar + "*)*";
  const std::string tail = "(\\?(" + pchar + "|[/?])*)?(#(" + pchar + "|[/?])*)?";
  const std::string uri = "[a-zA-Z][a-zA-Z0-9+.-]*://" + host + "(:[0-9]{1,5})?" + path + tail;
  return {
      {"date", date},
      {"time", time},
      {"date-time", date + "T" + time},
      {"duration",
       "P(([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-"
       "9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)|[0-9]+"
       "W)"},
      {"email", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+){0,7}@" + host},
      {"hostname", host},
      {"ipv4", ipv4},
      {"ipv6", ipv6},
      {"ipvanyaddress", "(" + ipv4 + "|" + ipv6 + ")"},
      {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
      {"uri", uri},
      {"uri-reference", "(" + uri + "|(/" + pchar + "+)*/?" + tail + ")"},
      {"json-pointer", "(/([^/~]|~[01])*)*"},
      {"relative-json-pointer", "(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)"},
  };
}

// Formats of the OpenAPI registry, pydantic and zod.
Formats library_formats() {
  const std::string ipv4 = ipv4_regex(), ipv6 = ipv6_regex();
  const std::string width4 = "/([12]?[0-9]|3[0-2])", width6 = "/([1-9]?[0-9]|1[01][0-9]|12[0-8])";
  const std::string number = "(0|[1-9][0-9]*)";
  const std::string label_of = "(" + number + "|[0-9]*[A-Za-z-][0-9A-Za-z-]*)";
  return {
      {"date-time-local", date_regex() + "T" + kLocalTime},
      {"time-local", kLocalTime},
      {"uuid1", uuid_regex("1")},
      {"uuid3", uuid_regex("3")},
      {"uuid4", uuid_regex("4")},
      {"uuid5", uuid_regex("5")},
      {"uuid6", uuid_regex("6")},
      {"uuid7", uuid_regex("7")},
      {"uuid8", uuid_regex("8")},
      {"cidrv4", ipv4 + width4},
      {"cidrv6", ipv6 + width6},
      {"cidr", "(" + ipv4 + width4 + "|" + ipv6 + width6 + ")"},
      {"ipv4network", ipv4 + "/32"},
      {"ipv6network", ipv6 + "/128"},
      {"ipvanynetwork", "(" + ipv4 + "/32|" + ipv6 + "/128)"},
      {"e164", "\\+[1-9][0-9]{6,14}"},
      {"mac", "([0-9A-F]{2}:){5}[0-9A-F]{2}"},
      {"nanoid", "[A-Za-z0-9_-]{21}"},
      {"cuid", "c[0-9a-z]{24}"},
      {"cuid2", "[a-z][0-9a-z]{23}"},
      {"ulid", "[0-7][0-9A-HJKMNP-TV-Z]{25}"},
      {"xid", "[0-9a-v]{20}"},
      {"ksuid", "[A-Za-z0-9]{27}"},
      {"semver", number + "\\." + number + "\\." + number + "(-" + label_of + "(\\." + label_of +
                     ")*)?(\\+[0-9A-Za-z-]+(\\.[0-9A-Za-z-]+)*)?"},
      {"objectid", "[0-9a-f]{24}"},
  };
}

std::string format_regex(const std::string& name) {
  if (name == "regex") return regex_regex();
  if (name == "uri-template") return template_regex();
  // The same under other names, or where all of one is valid under the other.
  static const Formats same = {
      {"idn-email", "email"},
      {"name-email", "email"},
      {"idn-hostname", "hostname"},
      {"host-name", "hostname"},
      {"iri", "uri"},
      {"url", "uri"},
      {"multi-host-uri", "uri"},
      {"iri-reference", "uri-reference"},
      {"datetime", "date-time"},
      {"guid", "uuid"},
      {"ip-address", "ipv4"},
      {"ipv4interface", "cidrv4"},
      {"ipv6interface", "cidrv6"},
      {"ipvanyinterface", "cidr"},
      {"mongoId", "objectid"},
  };
  auto alias = same.find(name);
  const std::string& key = alias == same.end() ? name : alias->second;
  static const Formats known = [] {
    Formats all = standard_formats();
    all.merge(library_formats());
    return all;
  }();
  auto it = known.find(key);
  return it == known.end() ? "" : it->second;
}

}  // namespace

const char* format_names() {
  return "date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid, uri, uri-reference, "
         "uri-template, json-pointer, relative-json-pointer, regex, and those of OpenAPI, pydantic "
         "and zod that docs/structured.md lists";
}

namespace {

std::string encoding_regex(const std::string& name) {
  const std::string url = "[A-Za-z0-9_-]", plain = "[A-Za-z0-9+/]";
  if (name == "base16") return "([0-9A-F]{2})*";
  if (name == "base64url") return "(" + url + "{4})*(" + url + "{2}(==)?|" + url + "{3}=?)?";
  if (name == "base64") return "(" + plain + "{4})*(" + plain + "{2}==|" + plain + "{3}=)?";
  if (name == "base32")
    return "([A-Z2-7]{8})*([A-Z2-7]{2}={6}|[A-Z2-7]{4}={4}|[A-Z2-7]{5}={3}|[A-Z2-7]{7}=)?";
  return "";
}

// Built once per name; they live as long as the program.
const CharFsm* named_fsm(const std::string& name, const std::string& regex) {
  static std::mutex mutex;
  static std::map<std::string, CharFsm> built;
  std::lock_guard lock(mutex);
  if (auto it = built.find(name); it != built.end()) return &it->second;
  if (regex.empty()) return nullptr;
  return &built.emplace(name, deterministic(parse_regex(regex, RegexUse::kWhole))).first->second;
}

}  // namespace

const CharFsm* format_fsm(const std::string& name) {
  if (name == "byte" || name == "base64") return encoding_fsm("base64");
  if (name == "base64url") return encoding_fsm(name);
  return named_fsm(name, format_regex(name));
}

bool is_hint_format(std::string_view name) {
  for (std::string_view known :
       {"password", "binary", "path", "file-path", "directory-path", "html", "markdown",
        "commonmark", "text", "textarea", "string", "code"})
    if (name == known) return true;
  return false;
}

const CharFsm* encoding_fsm(const std::string& name) {
  return named_fsm("contentEncoding " + name, encoding_regex(name));
}

}  // namespace tokamak::grammar

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/usual_templates.h"

namespace tokamak {
namespace {

std::string render(const std::string& source, const std::string& context = "{}") {
  return ChatTemplate::parse(source).render(parse_json(context));
}
std::string error_of(const std::string& source, const std::string& context = "{}") {
  try {
    return "rendered: " + render(source, context);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    return e.what();
  }
}

TEST(ChatTemplate, ChatMl) {
  const char* source =
      "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' "
      "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
      "endif %}";
  EXPECT_EQ(
      render(source,
             R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true})"),
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("a\nb\n{{ raise_exception('no ' ~ 'way') }}"), "chat template line 3: no way");
  EXPECT_EQ(error_of("\n{% if %}"), "chat template line 2: expected an expression, found '%}'");
  EXPECT_EQ(error_of("\n\n{{ x.y }}"), "chat template line 3: 'x' is undefined");
  EXPECT_EQ(error_of("{{ 1|nope }}"), "chat template line 1: no filter named 'nope'");
  EXPECT_EQ(error_of("{% for x in y %}"),
            "chat template line 1: the block is not closed: endfor is missing");
  EXPECT_EQ(error_of("{{ 'a' + 1 }}"),
            "chat template line 1: can only concatenate str (not \"int\") to str");
}

TEST(ChatTemplate, WhiteSpaceControl) {
  EXPECT_EQ(render("  {% if true %}\n  x\n  {% endif %}\ny\n"), "  x\ny");
  EXPECT_EQ(render("a  {{- 'b' -}}  c"), "abc");
  EXPECT_EQ(render("a {%+ if true %}\nb{% endif %}"), "a b");
  EXPECT_EQ(render("{# c #}\nx{#- d -#}  y"), "xy");
  EXPECT_EQ(render("{% raw %}{{ a }}{% endraw %}\nb"), "{{ a }}b");
}

TEST(ChatTemplate, DictsKeepOrderAndMethodsWin) {
  const char* context = R"({"d": {"z": 1, "a": [true, null, 1.0], "items": 5}})";
  EXPECT_EQ(render("{{ d }}", context), "{'z': 1, 'a': [True, None, 1.0], 'items': 5}");
  EXPECT_EQ(render("{{ d|tojson }}", context), R"({"z": 1, "a": [true, null, 1.0], "items": 5})");
  EXPECT_EQ(render("{% for k, v in d.items() %}{{ k }},{% endfor %}{{ d['items'] }}", context),
            "z,a,items,5");
}

TEST(ChatTemplate, ScopesAndMacros) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(render("{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor "
                   "%}{{ ns.x }}"),
            "2");
  EXPECT_EQ(render("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(b=3, a=4) }}"),
            "1243");
  EXPECT_EQ(
      render(
          "{% macro f() %}<{{ caller('x') }}>{% endmacro %}{% call(v) f() %}{{ v }}{% endcall %}"),
      "<x>");
  EXPECT_EQ(render("{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is not number else a "
                   "}}{% endfor %}"),
            "123");
}

// Template and the result of Python's jinja2; "!": it raises, or we reject it rather than guess.
TEST(ChatTemplate, AsPythonDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 'a\\r\\nb\\n'|indent(2) }}|", "a\n  b\n|"},
      {"{{ {'items': 1}|attr('items')()|list }}", "[('items', 1)]"},
      {"{% macro m(caller=none) %}[{{ caller() if caller }}]{% endmacro %}{% call m() %}x{% "
       "endcall %}",
       "[x]"},
      {"{% macro m(caller) %}{% endmacro %}", "!"},
      {"{% for loop in [1] %}{% endfor %}", "!"},
      {"{% for i in [1, 2] %}{% continue %}{% else %}none{% endfor %}", "none"},
      {"{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}", ""},
      {"{{ 443334433333333333 / 334 }} {{ -3 / 9007199254740993 }}",
       "1327348602794411.2 -3.330669073875469e-16"},
      {"{{ '{:#05}'.format(5) }} {{ '%#06.1f' % 1.5 }} {{ '{:#,}'.format(1234567) }}",
       "00005 0001.5 1,234,567"},
      {"{{ '{:#07x}'.format(31) }} {{ '{:#_b}'.format(300) }}", "0x0001f 0b1_0010_1100"},
      {"{{ ('a' * 300000)|wordwrap(1, true, 'b' * 300000) }}", "!"},
      {"{% block a %}{% endblock b %}", "!"},
      {"{% autoescape true %}{{ '<' }}{% endautoescape %}", "!"},
      {"{{ {}[]|default('d') }}{{ ('x'|safe) is escaped }}", "dTrue"},
      {"{{ \xF0\x9F\x98\x80 }}", "!"},
      {"{{ ('<{}>'|safe).format('<') }}{{ '{a[0]}'.format_map({'a': 'x'}) }}", "<&lt;>x"},
      {"{{ 'a'|upper(1) }}", "!"},
      {"{{ 'a'|tojson(ident=2) }}", "!"},
      {"{{ '12345678901234567890'|int }}", "!"},
      {"{{ '1_000'|int }}{{ '0x1f'|int(base=0) }}{{ '1__0'|int }}", "1000310"},
      {"{{ '{:.3} {:.3} {:_} {:#06x} {:G}'.format(3.0, 123.0, 1234567, 31, 1e22) }}",
       "3.0 1.23e+02 1_234_567 0x001f 1E+22"},
      {"{{ '{:d}'.format(1.5) }}", "!"},
      {"{{ '{:5}'.format(none) }}", "!"},
      {"{{ '%d' % 1e22 }}{{ '%x' % 31 }}", "100000000000000000000001f"},
      {"{{ '%x' % 1.5 }}", "!"},
      {"{{ 1.0 // 0.1 }} {{ 5.0 % -5 }} {{ -7.5 // 2 }}", "9.0 -0.0 -4.0"},
      {"{{ (-8) ** 0.5 }}", "!"},
      {"{{ '\xCE\xA3\xCE\xA3'.lower() }}{{ '\xC3\x9F'.casefold() }}{{ '\xEF\xAC\x81x'.title() }}",
       "\xCF\x83\xCF\x82ssFix"},
      {"{{ '\xC2\xB2'.isdigit() }}{{ '42'.istitle() }}{{ 'a b'.isidentifier() }}",
       "TrueFalseFalse"},
      {"{{ range(4)|slice(2, 'f')|list }}", "[[0, 1, 'f'], [2, 3, 'f']]"},
      {"{{ 'aaa bb cccc'|wordwrap(6) }}|{{ 'abcdefgh'|wordwrap(3) }}", "aaa bb\ncccc|abc\ndef\ngh"},
      {"{% print 'x' %}{{ '<!-- a --><b>c</b>'|striptags }}{{ {'b': 1, 'a': 2}|pprint }}",
       "xc{'a': 2, 'b': 1}"},
      {"{{ ['a']|sum(start='') }}", "!"},
      {"{{ {}|dictsort(by='size') }}", "!"},
      {"{{ [{'a': {'b': 1}}, {}]|map(attribute='a.b', default='-')|list }}", "[1, '-']"},
      {"{{ [{'a': {}}, {}]|groupby('a.b', default='-')|list }}", "[('-', [{'a': {}}, {}])]"},
      {"{{ {'a': [1]}|tojson(indent='\t') }}", "{\n\t\"a\": [\n\t\t1\n\t]\n}"},
      {"{% set q = 1 %}{% generation %}{% set q = 2 %}{{ q }}{% endgeneration %}{{ q }}", "21"},
      {"{{ '\xCE\xA3\xCE\xA3\xCE\xA3 a-b'|title }}{{ '\xC3\x9F'.capitalize() ~ ('<'|e)|forceescape "
       "}}",
       "\xCE\xA3\xCF\x83\xCF\x82 A-BSs&amp;lt;"},
  };
  for (const auto& [source, want] : cases) {
    if (std::string(want) == "!") {
      EXPECT_TRUE(error_of(source).starts_with("chat template line 1: ")) << source;
    } else {
      EXPECT_EQ(render(source), want) << source;
    }
  }
}

TEST(ChatTemplate, StrftimeNow) {
  RenderLimits limits;
  limits.now = TemplateTime::parse("2026-11-15T12:30:45");
  EXPECT_EQ(ChatTemplate::parse("{{ strftime_now('%A %d %B %Y %H:%M:%S %j') }}")
                .render(Value::object(), limits),
            "Sunday 15 November 2026 12:30:45 319");
  EXPECT_THROW(TemplateTime::parse("yesterday"), Error);
  EXPECT_THROW(TemplateTime::parse("2026-13-01"), Error);
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const std::string sources[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{{ range(10 ** 12) }}",
      "{{ 'x' * 10 ** 15 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor "
      "%}{{ ns.s }}",
      "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor "
      "%}{{ ns.s|tojson }}",
      "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
      "{{ 'a'.replace('', 'b' * 1000000) * 1000 }}",
      "{{ '%999999999d' % 1 }}",
      "{{ '{:>999999999}'.format(1) }}",
      "{{ 'a'.center(10 ** 14) }}",
      "{{ 9 ** 99 }}",
      "{{ [1]|batch(10 ** 14, 0)|list }}",
      "{% set d = {} %}{% for i in range(100000) %}{% set _ = d.update({i: 1}) %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor "
      "%}{{ ns.x|tojson }}",
      std::string(100000, '('),
      "{{ " + std::string(100000, '(') + "1",
      "{{ " + std::string(100000, '-') + "1 }}",
      "{{ " + std::string(100000, '[') + " }}",
      "{{ not " + repeated("not ", 50000) + "1 }}",
      "{{ 1" + repeated("+1", 50000) + " }}",
      repeated("{% if true %}", 5000),
  };
  RenderLimits limits;
  limits.max_memory_bytes = size_t{16} << 20;  // a render terminates under any limit
  limits.max_steps = 500'000;
  for (const std::string& source : sources) {
    const auto start = std::chrono::steady_clock::now();
    try {
      ChatTemplate::parse(source).render(Value::object(), limits);
      EXPECT_LT(source.size(), 0u + 1000000) << "plain text may render";
      EXPECT_EQ(source[0], '(') << source.substr(0, 80);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what();
    }
    // Generous: the point is that it terminates at all.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60))
        << source.substr(0, 80);
  }
}

TEST(ChatTemplate, SelfReferencesDoNotLeak) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{% set l = [] %}{% set _ = "
                   "l.append(l) %}ok"),
            "ok");
}

TEST(UsualTemplates, AConversationInEveryForm) {
  const std::string context = R"({"bos_token": "<s>", "eos_token": "</s>", "messages": [
      {"role": "system", "content": "S"}, {"role": "user", "content": " A"},
      {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}],
      "add_generation_prompt": true})";
  const std::pair<const char*, const char*> forms[] = {
      {"chatml",
       "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n A<|im_end|>\n"
       "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"command-r",
       "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>A<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>B<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>C<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
      {"gemma",
       "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
       "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n"},
      {"llama2", "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"},
      {"llama3",
       "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"mistral", "[INST] S\n\nA [/INST] B</s>[INST] C [/INST]"},
      {"phi3",
       "<|system|>\nS<|end|>\n<|user|>\n A<|end|>\n<|assistant|>\nB<|end|>\n"
       "<|user|>\nC<|end|>\n<|assistant|>\n"},
      {"vicuna", "S\n\nUSER:  A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:"},
      {"zephyr",
       "<|system|>\nS</s>\n<|user|>\n A</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n"
       "<|assistant|>\n"}};
  std::string names;
  for (const auto& [name, text] : forms) {
    EXPECT_EQ(render(usual_template(name, false), context), text) << name;
    EXPECT_EQ(render(usual_template(name, true), context), "<s>" + std::string(text)) << name;
    names += (names.empty() ? "" : " ") + std::string(name);
  }
  EXPECT_EQ(usual_template_names(), names);
  EXPECT_EQ(usual_template("no such form", true), "");
}

}  // namespace
}  // namespace tokamak

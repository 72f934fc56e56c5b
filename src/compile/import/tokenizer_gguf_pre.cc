// tokenizer.ggml.pre: the names that GGUF files use for the word splitting of byte-level BPE.
#include "compile/import/tokenizer_gguf_pre.h"

#include <algorithm>

namespace tokamak {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kJais2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kYoutuWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The letters grouped by DeepSeek-LLM: upper and lower case letters of the scripts that have case.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  std::string_view names;  // separated by spaces
  std::vector<std::string_view> regexes;
  bool ignore_merges = false;
  int add_bos = 0;
  std::string_view normalizer = {};
};

const std::vector<Row> kRows = {
    {" default ", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {kLlama3},
     true,
     1},
    {" dbrx smaug-bpe chatglm-bpe glm4 glm5 ", {kLlama3}},
    {" jais-2 ", {kJais2}},
    {" gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt "
     "olmo jais "
     "trillion granite-docling exaone4 jina-v1-en jina-v2-code roberta-bpe ",
     {kGpt2}},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
     {R"(\p{N})", kGpt2}},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez ", {kQwen2}, false, 0, "NFC"},
    {" stablelm2 hunyuan solar-open grok-2 ", {kQwen2}},
    {" qwen35 ", {kQwen35}, false, 0, "NFC"},
    {" deepseek-llm ",
     {R"([\r\n])", kDeepseekLetters, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)",
      "[一-龥ࠀ-一가-퟿]+", R"(\p{N}+)"}},
    {" deepseek-coder ",
     {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseekWords}},
    {" youtu ",
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"
      "ゟ゠-"
      "ヿ]"
      "+",
      kYoutuWords},
     true},
    {" falcon ", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
    {" poro-chat bloom gpt3-finnish ", {kBloom}},
    {" viking ", {kBloom, R"(\p{N})"}},
    {" tekken ", {kTekken}, true, 1},
    {" chameleon ",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", R"(([\t\n]|    |  ))", R"(\p{N})",
      R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
     false,
     1},
    {" gpt-4o llama4 kanana2 talkie minimax-m2 ", {kGpt4o}},
    {" granite-embed-multi-97m ", {kGpt4o}, true},
    {" tiny_aya cohere2moe ", {R"(\d{1,3}(?=(?:\d{3})*\b))", kGpt4o}},
    {" superbpe ", {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"}},
    {" bailingmoe bailingmoe2 llada-moe ",
     {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"}},
    {" seed-coder ",
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {" ufakzeka ",
     {R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {" kimi-k2 ", {kKimi}},
    {" afmoe ",
     {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))",
      "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-"
      "꧿가-"
      "힯ᄀ-"
      "ᇿ]"
      "+",
      kDeepseekWords}},
    {" laguna ", {R"([^\n]+|[\n]+)", kQwen2}},
    {" exaone-moe ",
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"}},
    {" minicpm5 ",
     {R"(\p{N}{1,3})",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     true},
};

}  // namespace

std::optional<GgufPre> find_gguf_pre(std::string_view name) {
  std::string wanted(1, ' ');
  wanted.append(name).push_back(' ');
  for (const Row& row : kRows) {
    if (row.names.find(wanted) == std::string_view::npos) continue;
    GgufPre pre;
    for (std::string_view regex : row.regexes) pre.regexes.emplace_back(regex);
    pre.ignore_merges = row.ignore_merges;
    pre.add_bos = row.add_bos != 0;
    pre.normalizer = std::string(row.normalizer);
    return pre;
  }
  return std::nullopt;
}

const std::string_view kGgufGpt2Words = kGpt2;

std::string gguf_pre_name(const GgufPre& pre) {
  for (const Row& row : kRows) {
    if (row.ignore_merges != pre.ignore_merges || row.normalizer != pre.normalizer ||
        !std::equal(row.regexes.begin(), row.regexes.end(), pre.regexes.begin(), pre.regexes.end()))
      continue;
    return std::string(row.names.substr(1, row.names.find(' ', 1) - 1));
  }
  return "";
}

}  // namespace tokamak

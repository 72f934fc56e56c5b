#pragma once
namespace tokamak {

// The Unicode script of a character as a small integer. kScriptAny: the space, and characters
// without one. Hiragana and katakana count as Han. The first call builds a table (a second or so).
inline constexpr int kScriptAny = 0;
int script_of(char32_t c);

}  // namespace tokamak

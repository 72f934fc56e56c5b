#include <array>

#include "text/model.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 512> bytes{};
  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      chars[b] = printable ? static_cast<char32_t>(b) : next++;
      bytes[chars[b]] = static_cast<int16_t>(b);
    }
  }
};
const Alphabet kAlphabet;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

int char_to_byte(char32_t c) { return c < kAlphabet.bytes.size() ? kAlphabet.bytes[c] : -1; }

bool unmap_bytes(std::string_view piece, std::string& bytes) {
  bytes.clear();
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char c = utf8_decode(piece, pos);
    const int b = c.valid ? char_to_byte(c.cp) : -1;
    if (b < 0) return false;
    bytes += static_cast<char>(b);
    pos += c.length;
  }
  return true;
}

void map_bytes(std::string_view bytes, std::string& piece) {
  for (char b : bytes) utf8_append(piece, kAlphabet.chars[static_cast<unsigned char>(b)]);
}

int byte_piece_value(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = hex_value(piece[3]), low = hex_value(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string byte_piece(int byte) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte >> 4 & 15] + kHex[byte & 15] + ">";
}

}  // namespace tokamak

#include "serve/http/websocket.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "text/unicode.h"

namespace tokamak::http::websocket {
namespace {

// Does the comma-separated header contain that word? `word` is in lower case.
bool lists(std::string_view header, std::string_view word) {
  std::string text;
  for (char c : header)
    if (c != ' ' && c != '\t')
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(',', start), text.size());
    if (text.compare(start, end - start, word) == 0) return true;
    start = end + 1;
  }
  return false;
}

// Sent back to show that the server understood the handshake.
std::string accept_key(std::string_view key) {
  std::string text = std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  unsigned char digest[EVP_MAX_MD_SIZE], encoded[2 * EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha1(), nullptr);
  int length = EVP_EncodeBlock(encoded, digest, static_cast<int>(size));
  return std::string(reinterpret_cast<char*>(encoded), static_cast<size_t>(length));
}

bool is_control(Opcode opcode) { return static_cast<int>(opcode) >= 8; }

// A code that may be sent; the others are reserved.
bool is_close_code(int code) {
  return (code >= 1000 && code <= 1014 && (code < 1004 || code > 1006)) ||
         (code >= 3000 && code <= 4999);
}

bool is_known(int opcode) { return opcode <= 2 || (opcode >= 8 && opcode <= 10); }

}  // namespace

bool wants_upgrade(const Request& request) {
  return request.method == "GET" && lists(request.header("connection"), "upgrade") &&
         lists(request.header("upgrade"), "websocket");
}

Response handshake(const Request& request) {
  std::string_view key = request.header("sec-websocket-key");
  Response response;
  if (request.header("sec-websocket-version") != "13") {
    response = error_response(426, "Only version 13 of the WebSocket protocol is supported.");
    response.headers.emplace_back("Sec-WebSocket-Version", "13");
  } else if (key.size() != 24 || !key.ends_with("==")) {
    response = error_response(400, "Sec-WebSocket-Key must be 16 bytes in base64.");
  } else {
    response.status = 101;
    response.headers = {{"Upgrade", "websocket"},
                        {"Connection", "Upgrade"},
                        {"Sec-WebSocket-Accept", accept_key(key)}};
  }
  return response;
}

void append_frame(std::string& out, Opcode opcode, std::string_view payload) {
  out += static_cast<char>(0x80 | static_cast<int>(opcode));
  const uint64_t size = payload.size();
  const int bytes = size < 126 ? 0 : size <= 0xffff ? 2 : 8;
  out += static_cast<char>(bytes == 0 ? size : bytes == 2 ? 126 : 127);
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(size >> (8 * i));
  out += payload;
}

void append_close(std::string& out, int code) {
  const char payload[] = {static_cast<char>(code >> 8), static_cast<char>(code)};
  append_frame(out, Opcode::kClose, {payload, 2});
}

FrameReader::Event FrameReader::fail(int code) {
  code_ = code;
  return Event::kError;
}

FrameReader::Event FrameReader::read_header(std::string& input) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(input[i]); };
  if (input.size() < 2) return Event::kNeedMore;
  const int opcode = byte(0) & 15, short_size = byte(1) & 127;
  if ((byte(0) & 0x70) != 0 || !is_known(opcode) || (byte(1) & 0x80) == 0)
    return fail(kProtocolError);  // extensions, unknown frames, no mask
  const int bytes = short_size < 126 ? 0 : short_size == 126 ? 2 : 8;
  const size_t header = static_cast<size_t>(2 + bytes + 4);
  final_ = (byte(0) & 0x80) != 0;
  frame_ = static_cast<Opcode>(opcode);
  const bool inside_message = opcode_ != Opcode::kContinuation;
  if (is_control(frame_) ? !final_ || bytes != 0
                         : (frame_ == Opcode::kContinuation) != inside_message)
    return fail(kProtocolError);
  if (input.size() < header) return Event::kNeedMore;
  uint64_t size = bytes == 0 ? static_cast<uint64_t>(short_size) : 0;
  for (int i = 0; i < bytes; ++i) size = size << 8 | byte(static_cast<size_t>(2 + i));
  if (size >> 63 != 0) return fail(kProtocolError);
  if (!is_control(frame_) && size > max_message_ - message_.size()) return fail(kTooBig);
  if (frame_ == Opcode::kBinary) return fail(kUnsupportedData);
  for (size_t i = 0; i < 4; ++i) mask_[i] = byte(header - 4 + i);
  input.erase(0, header);
  left_ = size;
  position_ = 0;
  started_ = true;
  control_.clear();
  if (frame_ == Opcode::kText) opcode_ = frame_;
  return Event::kMessage;  // the header is complete
}

FrameReader::Event FrameReader::next(std::string& input) {
  if (!started_)
    if (Event event = read_header(input); event != Event::kMessage) return event;
  std::string& target = is_control(frame_) ? control_ : message_;
  const size_t count = std::min(left_, input.size());
  for (size_t i = 0; i < count; ++i)
    target += static_cast<char>(static_cast<unsigned char>(input[i]) ^ mask_[position_++ & 3]);
  input.erase(0, count);
  left_ -= count;
  if (left_ > 0) return Event::kNeedMore;
  started_ = false;
  return end_frame();
}

FrameReader::Event FrameReader::end_frame() {
  if (frame_ == Opcode::kClose) {
    if (control_.size() == 1) return fail(kProtocolError);
    code_ = control_.empty() ? static_cast<int>(kNormal)
                             : static_cast<unsigned char>(control_[0]) << 8 |
                                   static_cast<unsigned char>(control_[1]);
    if (!is_close_code(code_)) return fail(kProtocolError);
    const bool reason_is_text = control_.empty() || utf8_is_valid(control_.substr(2));
    return reason_is_text ? Event::kClose : fail(kInvalidText);
  }
  if (is_control(frame_)) {
    payload_ = control_;
    return frame_ == Opcode::kPing ? Event::kPing : Event::kPong;
  }
  if (!final_) return Event::kFragment;
  if (!utf8_is_valid(message_)) return fail(kInvalidText);
  payload_ = std::move(message_);
  message_.clear();
  opcode_ = Opcode::kContinuation;
  return Event::kMessage;
}

void MessageCutter::start(std::string_view content_type) {
  events_ = content_type.starts_with("text/event-stream");
}

// An event's lines without a name are comments or fields that clients of a WebSocket do not need:
// the data says what it is.
void MessageCutter::cut(std::string_view text, std::string& frames) {
  if (!events_) {
    if (!text.empty()) append_frame(frames, Opcode::kText, text);
    return;
  }
  constexpr std::string_view kData = "data: ";
  for (size_t start = 0; start < text.size();) {
    size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = text.substr(start, end - start);
    if (line.starts_with(kData)) append_frame(frames, Opcode::kText, line.substr(kData.size()));
    start = end + 1;
  }
}

void MessageCutter::add(std::string_view bytes, std::string& frames) {
  rest_ += bytes;
  const std::string_view mark = events_ ? "\n\n" : "\n";
  size_t start = 0;
  for (size_t end; (end = rest_.find(mark, start)) != std::string::npos; start = end + mark.size())
    cut(std::string_view(rest_).substr(start, end - start), frames);
  rest_.erase(0, start);
}

void MessageCutter::finish(std::string& frames) {
  cut(rest_, frames);
  rest_.clear();
}

}  // namespace tokamak::http::websocket

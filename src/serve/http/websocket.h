#pragma once
// WebSocket (RFC 6455) on the server's side, without sockets: the handshake and frames. A message
// of the client is the body of a POST to the path of the handshake; the answer comes back as one
// message, or for a stream as one message per event.
#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace tokamak::http::websocket {

enum class Opcode { kContinuation = 0, kText = 1, kBinary = 2, kClose = 8, kPing = 9, kPong = 10 };

enum CloseCode {
  kNormal = 1000,
  kGoingAway = 1001,
  kProtocolError = 1002,
  kUnsupportedData = 1003,
  kInvalidText = 1007,
  kPolicy = 1008,
  kTooBig = 1009
};

bool wants_upgrade(const Request& request);
// The answer to the handshake: 101, or an error that says what is wrong with it.
Response handshake(const Request& request);

void append_frame(std::string& out, Opcode opcode, std::string_view payload);
void append_close(std::string& out, int code);

// Reads the client's frames. Owner: a connection.
class FrameReader {
 public:
  explicit FrameReader(size_t max_message) : max_message_(max_message) {}

  enum class Event { kNeedMore, kFragment, kMessage, kPing, kPong, kClose, kError };
  // Removes at most one frame from the front of `input`, as far as it has arrived. kError: the
  // connection must be closed with code().
  Event next(std::string& input);

  std::string& payload() { return payload_; }  // of kMessage and kPing, until the next call
  int code() const { return code_; }           // of kClose (as sent) and kError
  size_t held() const { return message_.size(); }
  bool inside() const { return started_ || opcode_ != Opcode::kContinuation; }  // a message

 private:
  Event fail(int code);
  Event read_header(std::string& input);
  Event end_frame();

  const size_t max_message_;
  std::string message_, control_, payload_;
  Opcode opcode_ = Opcode::kContinuation;  // of the message that is being received, if one is
  // The frame that is being received.
  bool started_ = false, final_ = false;
  Opcode frame_ = Opcode::kText;
  size_t left_ = 0, position_ = 0;
  unsigned char mask_[4] = {};
  int code_ = kNormal;
};

// The messages of a stream's bytes: the data of server-sent events, or lines.
class MessageCutter {
 public:
  void start(std::string_view content_type);
  void add(std::string_view bytes, std::string& frames);
  void finish(std::string& frames);

 private:
  void cut(std::string_view text, std::string& frames);
  bool events_ = false;
  std::string rest_;
};

}  // namespace tokamak::http::websocket

#pragma once
// One connection. Private to http/: the only header here that shows sockets.
#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "serve/http/origins.h"
#include "serve/http/server.h"
#include "serve/http/stream.h"
#include "serve/http/turn.h"
#include "serve/http/websocket.h"

namespace tokamak::http {

namespace net = boost::asio;

class Session;

// Shared by the connections of a server. Outlives them.
struct SharedState {
  ServerOptions options;
  Router router;
  ServerStats stats;
  Origins origins;
  std::shared_ptr<net::ssl::context> tls;  // null: plain HTTP
  std::atomic<bool> stopping{false};
  std::atomic<size_t> body_bytes{0};  // bytes held by requests being read
  std::atomic<int64_t> busy{0};       // connections with a request in progress
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<Session*, std::weak_ptr<Session>> sessions;
};

// A request body that grows with the received data, not with the claimed length.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool IsRequest, class Fields>
    reader(boost::beast::http::header<IsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, boost::beast::error_code& ec) { ec = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& ec) {
      ec = {};
      size_t before = body_.size();
      for (auto it = net::buffer_sequence_begin(buffers); it != net::buffer_sequence_end(buffers);
           ++it)
        body_.append(static_cast<const char*>((*it).data()), (*it).size());
      return body_.size() - before;
    }
    void finish(boost::beast::error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

// Owner: itself, through its pending operations; runs on its strand. A read is almost always
// pending, even while the answer is computed, to detect a disconnecting client.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(net::ip::tcp::socket socket, std::shared_ptr<SharedState> shared);
  ~Session();

  // probes_only: only routes added with `always` are answered, the others with 503.
  void start(bool probes_only);
  void refuse(Response response);  // instead of start: answer and close
  void drain();  // thread-safe: close when idle between requests, else after the answer
  void hurry();  // thread-safe: the answer in progress must end now
  void kill();   // thread-safe: close now

 private:
  using Timer = net::steady_timer;
  using TimePoint = Timer::time_point;
  using Parser = boost::beast::http::request_parser<GrowingBody>;
  enum class Phase { kHandshake, kReading, kBusy, kLinger, kDead };

  void open();  // the handshake if there is one, then the first request
  void on_handshake(boost::beast::error_code ec);
  void read_more();
  void on_read(boost::beast::error_code ec, size_t bytes);
  void on_input_end();
  void parse();
  bool parse_some();  // true: a request is complete
  void on_header();
  void on_parse_error(boost::beast::error_code ec);
  void account_body(size_t held);
  void next_request();

  void dispatch();
  void run(Request request, Turn::Traits traits, const Router::Match& match);
  Response plain_answer(const Request& request, const Router::Match& match) const;
  void reject(Response response);  // answer, then close
  std::shared_ptr<Turn> begin_turn(Request request, Turn::Traits traits);
  std::string cors_headers(const Request& request) const;

  // WebSocket, in websocket_session.cc.
  void upgrade(Request request, const std::string& extra_headers);
  void parse_frames();
  void dispatch_message(std::string body);
  void next_message();
  void flush_control();
  void close_websocket(int code);

  void pump();
  void write_some();
  void on_written(boost::beast::error_code ec, size_t bytes);
  void end_turn();
  void set_busy(bool busy);
  void linger();
  void die();

  std::chrono::milliseconds wait_time(std::chrono::milliseconds usual) const;
  void set_deadline(std::chrono::milliseconds from_now);
  void arm_timer();
  void on_timer();
  void on_deadline();

  // First, so that it is destroyed last: the thread that waits for the connections to end may then
  // destroy the io_context.
  struct Seat {
    std::shared_ptr<SharedState> shared;
    Session* session;
    ~Seat();
  } seat_;
  Stream stream_;
  Timer timer_;
  std::shared_ptr<SharedState> shared_;
  std::string remote_;
  Phase phase_ = Phase::kReading;

  std::array<char, 16384> chunk_;
  std::string input_;  // bytes not parsed yet
  std::unique_ptr<Parser> parser_;
  bool reading_ = false, eof_ = false, started_ = false, header_seen_ = false, busy_ = false;
  bool answered_ = false;  // at least once
  bool probes_only_ = false;
  size_t accounted_ = 0, discarded_ = 0;

  std::unique_ptr<websocket::FrameReader> frames_;  // after the handshake of a WebSocket
  Request opened_;                                  // the handshake
  std::string control_;                             // control frames not sent yet
  std::optional<std::string> waiting_;              // a message that came during an answer
  bool closing_ = false;                            // the close frame is sent or about to be

  std::shared_ptr<Turn> turn_;
  std::string output_;
  size_t sent_ = 0;
  bool writing_ = false;
  Turn::Taken taken_;

  TimePoint deadline_ = TimePoint::max(), next_ping_ = TimePoint::max(), armed_ = TimePoint::max();
  TimePoint linger_end_ = TimePoint::max();
  bool timer_pending_ = false;
};

Response too_many_connections();

}  // namespace tokamak::http

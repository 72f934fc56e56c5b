#include "serve/http/session.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>

#include <algorithm>

#include "base/log.h"
#include "serve/http/tls.h"

namespace tokamak::http {
namespace {

namespace beast = boost::beast;
using Error = beast::error_code;

constexpr size_t kPipelined = 64 << 10;  // bytes of later requests buffered while one is answered
// What is read of a rejected request before the connection is closed.
constexpr size_t kMaxDiscard = 1 << 30;
constexpr std::chrono::seconds kMaxLinger{30}, kLingerPause{2};
constexpr std::chrono::milliseconds kHandshakeTime{10'000};
constexpr std::chrono::milliseconds kProbeTime{5000};  // for a request above the connection limit

}  // namespace

Session::Session(net::ip::tcp::socket socket, std::shared_ptr<SharedState> shared)
    : seat_{shared, this},
      stream_(std::move(socket), shared->tls),
      timer_(stream_.get_executor()),
      shared_(std::move(shared)) {
  Error ec;
  auto& tcp = stream_.socket();
  tcp.set_option(net::ip::tcp::no_delay(true), ec);
  tcp.set_option(net::socket_base::keep_alive(true), ec);
  if (int size = shared_->options.send_buffer_bytes; size > 0)
    tcp.set_option(net::socket_base::send_buffer_size(size), ec);
  auto peer = tcp.remote_endpoint(ec);
  if (!ec) remote_ = peer.address().to_string(ec);
}

Session::~Session() {
  set_busy(false);
  shared_->body_bytes -= accounted_;
}

Session::Seat::~Seat() {
  std::lock_guard lock(shared->mutex);
  shared->sessions.erase(session);
  --shared->stats.connections;
  shared->changed.notify_all();
}

Response too_many_connections() {
  Response response = error_response(503, "Too many open connections.");
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

void Session::start(bool probes_only) {
  net::post(stream_.get_executor(), [self = shared_from_this(), probes_only] {
    self->probes_only_ = probes_only;
    self->open();
  });
}

void Session::refuse(Response response) {
  net::post(stream_.get_executor(), [self = shared_from_this(), response = std::move(response)] {
    if (self->stream_.encrypted()) return self->die();  // an answer would need the handshake
    self->reject(response);
    self->read_more();
  });
}

void Session::open() {
  if (!stream_.encrypted()) {
    next_request();
    return read_more();
  }
  phase_ = Phase::kHandshake;
  set_deadline(wait_time(kHandshakeTime));
  stream_.async_handshake([self = shared_from_this()](Error ec) { self->on_handshake(ec); });
}

void Session::on_handshake(Error ec) {
  if (phase_ == Phase::kDead) return;
  if (ec && !is_plain_http(ec)) return die();
  if (!ec) {
    next_request();
  } else {
    stream_.give_up_tls();
    reject(error_response(400, "This port expects HTTPS; the request was plain HTTP."));
  }
  read_more();
}

void Session::drain() {
  net::post(stream_.get_executor(), [self = shared_from_this()] {
    const bool idle = self->phase_ == Phase::kReading && !self->started_;
    if (idle && self->frames_ != nullptr) return self->close_websocket(websocket::kGoingAway);
    // The request of a new connection may already be on its way.
    if (idle && self->answered_) self->die();
  });
}

void Session::hurry() {
  net::post(stream_.get_executor(), [self = shared_from_this()] {
    if (auto turn = self->turn_) turn->set_stopping();
  });
}

void Session::kill() {
  net::post(stream_.get_executor(), [self = shared_from_this()] { self->die(); });
}

void Session::next_request() {
  phase_ = Phase::kReading;
  set_busy(false);
  if (frames_ == nullptr) {
    parser_ = std::make_unique<Parser>();
    parser_->header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
    parser_->body_limit(shared_->options.max_body_bytes);
    parser_->eager(true);
  }
  started_ = header_seen_ = false;
  set_deadline(wait_time(shared_->options.idle_timeout));
}

std::chrono::milliseconds Session::wait_time(std::chrono::milliseconds usual) const {
  return probes_only_ ? std::min(usual, kProbeTime) : usual;
}

void Session::read_more() {
  if (reading_ || eof_ || phase_ == Phase::kDead) return;
  if (phase_ == Phase::kBusy && input_.size() >= kPipelined) return;
  if (phase_ == Phase::kReading && closing_) return;
  reading_ = true;
  stream_.async_read_some(net::buffer(chunk_), [self = shared_from_this()](Error ec, size_t n) {
    self->on_read(ec, n);
  });
}

void Session::on_read(Error ec, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kDead) return;
  if (ec) {
    eof_ = true;
    const bool busy = phase_ == Phase::kBusy && frames_ == nullptr && turn_ != nullptr;
    return ec == net::error::eof && busy ? on_input_end() : die();
  }
  if (phase_ == Phase::kLinger) {
    discarded_ += bytes;
    if (discarded_ > kMaxDiscard) return die();
    if (!shared_->stopping)
      deadline_ = std::min(linger_end_, Timer::clock_type::now() + kLingerPause);
  } else {
    input_.append(chunk_.data(), bytes);
    if (phase_ == Phase::kReading || frames_ != nullptr) parse();
  }
  read_more();
}

// The client closed its half of the connection, or all of it and left. A client that left answers
// the next bytes with a reset: until then it may be waiting for its answer.
void Session::on_input_end() {
  stream_.socket().async_wait(net::ip::tcp::socket::wait_error, [self = shared_from_this()](Error) {
    if (self->phase_ == Phase::kBusy) self->die();
  });
  turn_->probe();
}

void Session::parse() {
  if (input_.empty()) return;
  if (frames_ != nullptr) return parse_frames();
  if (!started_) {
    input_.erase(0, input_.find_first_not_of("\r\n"));  // clients may send empty lines in between
    if (input_.empty()) return;
    started_ = true;
    set_busy(true);
    set_deadline(wait_time(shared_->options.read_timeout));
  }
  if (parse_some()) dispatch();
}

bool Session::parse_some() {
  while (phase_ == Phase::kReading && !parser_->is_done()) {
    if (input_.empty()) return false;
    Error ec;
    size_t used = parser_->put(net::const_buffer(input_.data(), input_.size()), ec);
    input_.erase(0, used);
    if (ec && ec != beast::http::error::need_more) {
      on_parse_error(ec);
      return false;
    }
    if (parser_->is_header_done() && !header_seen_) {
      header_seen_ = true;
      on_header();
    }
    account_body(parser_->get().body().size());
    if (ec == beast::http::error::need_more || used == 0) break;
  }
  // Bodies are taken as they come: what is left is the head of a chunk, or trailers.
  if (phase_ == Phase::kReading && !parser_->is_done() &&
      input_.size() > shared_->options.max_header_bytes)
    on_parse_error(beast::http::error::header_limit);
  return phase_ == Phase::kReading && parser_->is_done();
}

void Session::on_header() {
  const auto& message = parser_->get();
  if (probes_only_ && message.method() != beast::http::verb::get &&
      message.method() != beast::http::verb::head)
    return reject(too_many_connections());  // before its body is read
  if (message.count(beast::http::field::host) > 1)
    return reject(error_response(400, "The Host header occurs more than once."));
  // Another server on the way may see the end of such a body elsewhere.
  auto encoding = message[beast::http::field::transfer_encoding];
  if (message.count(beast::http::field::transfer_encoding) > 1 ||
      (!encoding.empty() && !beast::iequals(encoding, "chunked")))
    return reject(error_response(501, "Only 'Transfer-Encoding: chunked' is supported."));
  auto expect = message[beast::http::field::expect];
  if (expect.empty() || message.version() < 11) return;
  if (!beast::iequals(expect, "100-continue"))
    return reject(error_response(417, "Only 'Expect: 100-continue' is supported."));
  if (!parser_->is_done() && input_.empty() && !writing_) {
    output_ = "HTTP/1.1 100 Continue\r\n\r\n";
    sent_ = 0;
    taken_ = {};
    write_some();
  }
}

void Session::account_body(size_t held) {
  if (held <= accounted_) return;
  size_t total = shared_->body_bytes += held - accounted_;
  accounted_ = held;
  if (total > shared_->options.max_total_body_bytes && phase_ == Phase::kReading) {
    Response response = error_response(503, "The server is reading too many large requests.");
    response.headers.emplace_back("Retry-After", "1");
    reject(std::move(response));
  }
}

void Session::on_parse_error(Error ec) {
  using beast::http::error;
  const ServerOptions& options = shared_->options;
  if (ec == error::header_limit)
    return reject(error_response(
        431, fmt::format("The request's headers exceed {} bytes.", options.max_header_bytes)));
  if (ec == error::body_limit)
    return reject(error_response(
        413, fmt::format("The request's body exceeds {} bytes.", options.max_body_bytes)));
  reject(error_response(400, fmt::format("Malformed HTTP request: {}.", ec.message())));
}

std::shared_ptr<Turn> Session::begin_turn(Request request, Turn::Traits traits) {
  phase_ = Phase::kBusy;
  set_busy(true);
  taken_ = {};
  deadline_ = TimePoint::max();
  traits.max_unsent = shared_->options.max_unsent_bytes;
  // Does not keep the io_context alive: a handler may hold its exchange longer than the server
  // lives.
  auto wake = [weak = weak_from_this()] {
    auto self = weak.lock();  // held until the post is done: the server waits for us
    if (self != nullptr) net::post(self->stream_.get_executor(), [self] { self->pump(); });
  };
  turn_ = std::make_shared<Turn>(std::move(request), std::move(traits), std::move(wake));
  if (eof_) turn_->probe();
  return turn_;
}

void Session::reject(Response response) {
  ++shared_->stats.rejected;
  if (frames_ != nullptr) return close_websocket(websocket::kPolicy);
  input_.clear();
  Turn::Traits traits;
  traits.keep_alive = false;
  begin_turn({}, std::move(traits))->respond(std::move(response));
}

void Session::pump() {
  if (phase_ != Phase::kBusy || turn_ == nullptr) return;
  if (writing_) {
    if (turn_->overflowed()) die();
    return;
  }
  taken_ = turn_->take(output_);
  output_.insert(0, std::exchange(control_, {}));
  sent_ = 0;
  if (taken_.cut && !taken_.done) return die();  // too slow
  if (taken_.streaming) next_ping_ = Timer::clock_type::now() + shared_->options.ping_interval;
  if (!output_.empty()) return write_some();
  if (taken_.done) return end_turn();
  deadline_ = TimePoint::max();
  arm_timer();
}

void Session::write_some() {
  writing_ = true;
  if (phase_ == Phase::kBusy) set_deadline(shared_->options.write_timeout);
  stream_.async_write_some(
      net::buffer(output_.data() + sent_, output_.size() - sent_),
      [self = shared_from_this()](Error ec, size_t n) { self->on_written(ec, n); });
}

void Session::on_written(Error ec, size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::kDead) return;
  if (ec) return die();
  sent_ += bytes;
  if (sent_ < output_.size()) return write_some();
  output_.clear();
  if (phase_ == Phase::kReading && closing_ && control_.empty()) return linger();
  if (phase_ == Phase::kReading) flush_control();
  if (phase_ != Phase::kBusy) return;
  if (taken_.done) return end_turn();
  pump();
}

void Session::end_turn() {
  bool keep = taken_.keep_alive && !taken_.cut;
  turn_.reset();
  answered_ = true;
  next_ping_ = TimePoint::max();
  shared_->body_bytes -= accounted_;
  accounted_ = 0;
  if (eof_ && (frames_ != nullptr || input_.empty())) return die();
  if (frames_ != nullptr) return next_message();
  if (!keep || shared_->stopping) return linger();
  next_request();
  parse();
  if (eof_ && phase_ == Phase::kReading) return die();  // the rest of a request never comes
  read_more();
}

// Closing with unread bytes would reset the connection and could lose the answer in transit. Most
// clients read it only when all of their request is sent.
void Session::linger() {
  phase_ = Phase::kLinger;
  input_.clear();
  if (Error ec = stream_.end_output([self = shared_from_this()] {}); ec) return die();
  linger_end_ = Timer::clock_type::now() + kMaxLinger;
  set_deadline(kLingerPause);
  read_more();
}

void Session::die() {
  if (phase_ == Phase::kDead) return;
  phase_ = Phase::kDead;
  set_busy(false);
  Error ec;
  stream_.socket().close(ec);
  timer_.cancel();
  if (auto turn = std::exchange(turn_, nullptr)) {
    ++shared_->stats.gone;
    turn->set_gone();
  }
}

// From the first byte of a request until its answer is sent, including the final linger.
void Session::set_busy(bool busy) {
  if (busy == std::exchange(busy_, busy)) return;
  shared_->busy += busy ? 1 : -1;
  if (busy || !shared_->stopping) return;
  std::lock_guard lock(shared_->mutex);  // a waiter must not miss it between checking and sleeping
  shared_->changed.notify_all();
}

void Session::set_deadline(std::chrono::milliseconds from_now) {
  deadline_ = Timer::clock_type::now() + from_now;
  arm_timer();
}

// The timer is only moved if it would fire too late; firing early costs one clock read.
void Session::arm_timer() {
  TimePoint when = std::min(deadline_, next_ping_);
  if (when == TimePoint::max() || (timer_pending_ && armed_ <= when)) return;
  armed_ = when;
  timer_pending_ = true;
  timer_.expires_at(when);
  timer_.async_wait([self = shared_from_this(), when](Error ec) {
    if (ec == net::error::operation_aborted && self->armed_ != when) return;  // moved
    self->timer_pending_ = false;
    if (self->phase_ != Phase::kDead) self->on_timer();
  });
}

void Session::on_timer() {
  TimePoint now = Timer::clock_type::now();
  if (now >= deadline_) {
    deadline_ = TimePoint::max();
    on_deadline();
  }
  if (now >= next_ping_ && turn_ != nullptr) {
    next_ping_ = now + shared_->options.ping_interval;
    if (!writing_) turn_->ping();
  }
  if (phase_ != Phase::kDead) arm_timer();
}

void Session::on_deadline() {
  if (phase_ == Phase::kReading && started_ && !closing_) {
    ++shared_->stats.timeouts;
    reject(error_response(408, "The request did not arrive in time."));
  } else {
    if (phase_ == Phase::kBusy) ++shared_->stats.timeouts;
    die();
  }
}

}  // namespace tokamak::http

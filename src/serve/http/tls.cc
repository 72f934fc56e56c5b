#include "serve/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <filesystem>

#include "base/error.h"

namespace tokamak::http {
namespace {

namespace ssl = boost::asio::ssl;
using SystemError = boost::system::error_code;

void require_file(const char* flag, const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec))
    fail(ErrorCode::kInvalidArgument, "{} {}: no such file", flag, path);
}

// The protocols a client offers ("\x2h2\x8http/1.1"): HTTP/1.1 is taken, or none.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x8http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kOurs, sizeof kOurs - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

std::shared_ptr<ssl::context> load_tls(const std::string& certificate_file,
                                       const std::string& key_file) {
  require_file("--ssl-certfile", certificate_file);
  require_file("--ssl-keyfile", key_file);
  auto tls = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = tls->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_alpn_select_cb(native, choose_protocol, nullptr);
  // Without a callback OpenSSL would ask on the terminal.
  tls->set_password_callback([](size_t, ssl::context::password_purpose) { return ""; });
  SystemError ec;
  tls->use_certificate_chain_file(certificate_file, ec);
  if (ec)
    fail(ErrorCode::kInvalidArgument, "--ssl-certfile {}: not a PEM certificate ({})",
         certificate_file, ec.message());
  tls->use_private_key_file(key_file, ssl::context::pem, ec);
  if (ec && ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == X509_R_KEY_VALUES_MISMATCH)
    fail(ErrorCode::kInvalidArgument, "--ssl-keyfile {}: not the key of the certificate in {}",
         key_file, certificate_file);
  if (ec)
    fail(ErrorCode::kInvalidArgument,
         "--ssl-keyfile {}: not a PEM key without a password ({}); remove the password with "
         "'openssl pkey -in {} -out plain.key'",
         key_file, ec.message(), key_file);
  return tls;
}

bool is_plain_http(const SystemError& ec) {
  return ec.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace tokamak::http

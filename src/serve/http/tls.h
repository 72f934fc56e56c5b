#pragma once
// TLS for the server's connections. Private to http/.
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

namespace tokamak::http {

// Loads a PEM certificate chain and its key; throws Error with the flag and the file to blame.
std::shared_ptr<boost::asio::ssl::context> load_tls(const std::string& certificate_file,
                                                    const std::string& key_file);

// Whether a handshake failed because the client spoke plain HTTP.
bool is_plain_http(const boost::system::error_code& ec);

}  // namespace tokamak::http

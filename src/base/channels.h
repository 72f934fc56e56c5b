#pragma once
// Log channels for debugging the compiler: TOKAMAK_LOGS=rewrite,fusion,memory ... Lines go to
// stderr regardless of TOKAMAK_LOG.
#include <string_view>

namespace tokamak::log {

bool channel_enabled(std::string_view name);                    // "all" switches every channel on
void channel(std::string_view name, std::string_view message);  // one line

}  // namespace tokamak::log

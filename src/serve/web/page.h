#pragma once
// The chat page: static files embedded in the binary.
#include "serve/http/router.h"

namespace tokamak::web {

// GET / and the files it loads.
void add_page(http::Router& router);

}  // namespace tokamak::web

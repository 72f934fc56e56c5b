#pragma once
// multipart/form-data, the form in which clients upload files.
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::openai {

struct FormPart {
  std::string name, filename;
  std::string_view content;  // into the body
};

// Throws ApiError(400) that says what is wrong.
std::vector<FormPart> parse_multipart(std::string_view content_type, std::string_view body);

}  // namespace tokamak::openai

#include "tensor/tensor_type.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tokamak {
namespace {

TEST(TensorType, TextRoundTrip) {
  for (const char* text :
       {"f32[]", "i32[t=T]", "f32[t=T, d=576]", "q4_k[n=576, k=1536]", "f32[m<=2*T, d=8]",
        "f32[3, T]", "bf16[<=T*k, 4]", "f32[h=min(B, T), r=ceildiv(T, 16)]", "bool[b=B + 1]"}) {
    size_t pos = 0;
    TensorType type = parse_tensor_type(text, pos);
    EXPECT_EQ(pos, std::string_view(text).size());
    EXPECT_EQ(type.text(), text);
  }
  size_t pos = 3;
  EXPECT_EQ(parse_tensor_type("xx f16[ a = 2*3 ,b<= T ] rest", pos).text(), "f16[a=6, b<=T]");
  EXPECT_EQ(pos, 24u);
}

TEST(TensorType, BadText) {
  std::string many = "f32[1";
  for (int i = 0; i < 20; ++i) many += ",1";
  for (const std::string& bad : std::vector<std::string>{
           "", "f33[T]", "f32", "f32[", "f32[T", "f32[T,", "f32[T,]", "f32[=T]", "f32[t=]",
           "f32[t=T;]", "f32[t<T]", "f32[t=T B]", "f32[\n1]", many + "]", "f32[t==T]", "[T]"}) {
    size_t pos = 0;
    EXPECT_THROW(parse_tensor_type(bad, pos), Error) << bad;
  }
}

TEST(TensorType, Sizes) {
  auto type = [](const char* text) {
    size_t pos = 0;
    return parse_tensor_type(text, pos);
  };
  EXPECT_EQ(type("f32[]").bytes(), SymExpr(4));
  EXPECT_EQ(type("f16[t=T, d=8]").elements().text(), "8*T");
  EXPECT_EQ(type("f16[t=T, d=8]").bytes().text(), "16*T");
  EXPECT_EQ(type("q4_0[t=T, d=64]").bytes().text(), "36*T");
  EXPECT_EQ(type("q4_0[n=2, d=64]").extent(-1), SymExpr(64));
  EXPECT_THROW(type("q4_0[d=T]").bytes(), Error);
  EXPECT_THROW(type("q4_0[d=33]").bytes(), Error);
  EXPECT_THROW(type("q4_0[]").bytes(), Error);
}

}  // namespace
}  // namespace tokamak

#include "decode/decoded_instructions.hpp"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

namespace vmm::test {
namespace {

auto told(const Instruction* i) {
  return i ? std::tuple{i->length,  i->branch, i->steppable, i->rep, i->load.has_value(), i->store.has_value(),
                        i->mnemonic}
           : std::tuple{std::uint8_t{}, vpmu::BranchKind::none, false, false, false, false, std::string_view{}};
}

// Decodes far more instructions than the cache holds, each many times; some cut off, as at the end of a mapped page.
TEST(DecodedInstructions, SaysOfAllBytesWhatTheDecoderSays) {
  constexpr unsigned codes = 2000;
  DecodedInstructions decoded;
  std::mt19937_64 random{1};
  std::vector<std::array<std::byte, 15>> all(codes);
  for (auto& code : all)
    for (std::byte& b : code) b = static_cast<std::byte>(random());
  unsigned valid = 0;
  for (unsigned n = 0; n < 20 * codes; ++n) {
    const auto& code = all[std::min<std::uint64_t>(random() % codes, random() % codes)];
    const auto bytes = std::span{code}.first(random() % 4 == 0 ? random() % 16 : 15);
    const auto size = n % 4 == 0 ? CodeMode::bits32 : n % 8 == 1 ? CodeMode::bits16 : CodeMode::bits64;
    const auto expected = decode_instruction(bytes, size);
    valid += expected ? 1 : 0;
    ASSERT_EQ(told(decoded(bytes, size)), told(expected ? &*expected : nullptr)) << n;
    ASSERT_EQ(told(decoded(bytes, size)), told(expected ? &*expected : nullptr)) << n;
  }
  EXPECT_GT(valid, codes);
}

// A cached instruction must not match shorter input: a missing byte is not 0.
TEST(DecodedInstructions, AByteThatIsMissingIsNoZero) {
  DecodedInstructions decoded;
  const std::array add{std::byte{0x00}, std::byte{0x00}};  // ADD [RAX], AL
  EXPECT_TRUE(decoded(add, CodeMode::bits64));
  EXPECT_FALSE(decoded(std::span{add}.first(1), CodeMode::bits64));
  EXPECT_FALSE(decoded({}, CodeMode::bits64));
  EXPECT_TRUE(decoded(add, CodeMode::bits64));
}

}  // namespace
}  // namespace vmm::test

#include "pmu/client_requests.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "fakes/fake_guest.hpp"

namespace vmm::test {
namespace {

using Kind = ClientRequest::Kind;
constexpr std::uint64_t code_page = 0x40'0000, data_page = 0x60'0000;

class ClientRequests : public testing::Test {
 protected:
  ClientRequests() {
    guest_.map(code_page, vpmu::page_size, {.is_user = true});
    guest_.map(data_page, vpmu::page_size, {.is_user = true});
    guest_.enter_ring(3);
    put(code_page, {0x48, 0xC1, 0xC7, 0x03, 0x48, 0xC1, 0xC7, 0x0D, 0x48, 0xC1, 0xC7, 0x3D, 0x48, 0xC1, 0xC7, 0x33,
                    0x48, 0x87, 0xDB});
  }
  void put(std::uint64_t at, const std::vector<std::uint8_t>& bytes) {
    EXPECT_FALSE(guest_.view.write_current(vpmu::GuestLinear{at}, std::as_bytes(std::span{bytes})));
  }
  void put_words(std::uint64_t request, std::uint64_t argument) {
    const std::array words{request, argument};
    EXPECT_FALSE(guest_.view.write_current(vpmu::GuestLinear{data_page}, std::as_bytes(std::span{words})));
  }
  std::optional<ClientRequest> read(std::uint64_t behind = code_page + 19, std::uint64_t rax = data_page) {
    return read_client_request({.behind = behind, .rax = rax}, guest_.view);
  }
  FakeGuest guest_;
};

TEST_F(ClientRequests, AreCallgrindsAndOurs) {
  put(data_page + 0x100, {'a', ' ', 'b', 0, 'c'});
  for (const auto& [code, kind, has_label] :
       {std::tuple{0x43540000U, Kind::dump_stats, false}, std::tuple{0x43540001U, Kind::zero_stats, false},
        std::tuple{0x43540002U, Kind::toggle_collect, false}, std::tuple{0x43540003U, Kind::dump_stats, true},
        std::tuple{0x43540004U, Kind::start_instrumentation, false},
        std::tuple{0x43540005U, Kind::stop_instrumentation, false}, std::tuple{0x56500000U, Kind::begin_region, true},
        std::tuple{0x56500001U, Kind::end_region, false}}) {
    put_words(code, data_page + 0x100);
    const auto request = read();
    ASSERT_TRUE(request.has_value()) << std::hex << code;
    EXPECT_EQ(request->kind, kind) << std::hex << code;
    EXPECT_EQ(request->label, has_label ? "a b" : "") << std::hex << code;
  }
  for (const std::uint64_t other : {0x1001ULL, 0x43540006ULL, 0x4D430000ULL, 0ULL, 1ULL << 32U | 0x43540001ULL}) {
    put_words(other, 0);
    EXPECT_FALSE(read().has_value()) << std::hex << other;
  }
}

TEST_F(ClientRequests, AreNoneWithoutTheInstructionsBefore) {
  put_words(0x43540001, 0);
  EXPECT_TRUE(read().has_value());
  for (std::uint64_t at = code_page; at < code_page + 19; ++at) {
    std::array<std::byte, 1> byte{};
    EXPECT_FALSE(guest_.view.read_current(vpmu::GuestLinear{at}, byte));
    put(at, {0x90});
    EXPECT_FALSE(read().has_value()) << at;
    put(at, {std::to_integer<std::uint8_t>(byte[0])});
  }
  EXPECT_FALSE(read(code_page + 5).has_value()) << "the page before is not mapped";
  EXPECT_FALSE(read(3).has_value());
}

TEST_F(ClientRequests, OfMemoryThatCannotBeReadAreNone) {
  put_words(0x43540001, 0);
  for (const std::uint64_t rax :
       {std::uint64_t{0x1000}, ~std::uint64_t{0}, data_page + vpmu::page_size - 8, std::uint64_t{1} << 47U})
    EXPECT_FALSE(read(code_page + 19, rax).has_value()) << std::hex << rax;
}

TEST_F(ClientRequests, HaveLabelsOfBoundedLength) {
  put(data_page + 0x100, std::vector<std::uint8_t>(1000, 'x'));
  put_words(0x56500000, data_page + 0x100);
  EXPECT_EQ(read()->label, std::string(ClientRequest::max_label, 'x'));
  put_words(0x56500000, data_page + vpmu::page_size - 2);
  put(data_page + vpmu::page_size - 2, {'e', 'n'});
  EXPECT_EQ(read()->label, "en") << "up to what is not mapped";
  for (const auto& [at, label] : {std::pair{~0ULL - 4, "0xfffffffffffffffb"}, std::pair{0x1000ULL, "0x1000"}}) {
    put_words(0x56500000, at);
    EXPECT_EQ(read()->label, label) << "not mapped";
  }
}

}  // namespace
}  // namespace vmm::test

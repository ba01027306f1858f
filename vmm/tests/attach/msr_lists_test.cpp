#include "attach/msr_lists.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace vmm {
namespace {

/// A list of MSRs in a VMM's memory.
struct List {
  std::vector<std::uint64_t> room;
  explicit List(const std::vector<std::uint32_t>& indices) : room(1 + indices.size() * 2) {
    msrs().nmsrs = static_cast<std::uint32_t>(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i)
      msrs().entries[i] = {.index = indices[i], .reserved = 0, .data = 0};
  }
  kvm_msrs& msrs() { return *reinterpret_cast<kvm_msrs*>(room.data()); }
  std::vector<std::uint64_t> values() {
    std::vector<std::uint64_t> found;
    for (std::uint32_t i = 0; i < msrs().nmsrs; ++i) found.push_back(msrs().entries[i].data);
    return found;
  }
};

/// MSRs 100 to 199 are ours, but 150 cannot be served; KVM has those below 50. `asked` records the lists that KVM gets.
class MsrLists : public testing::Test {
 protected:
  std::vector<std::vector<std::uint32_t>> asked;
  int broken{};
  MsrOwners owners{.is_ours = [](std::uint32_t index) { return index >= 100 && index < 200; },
                   .serve =
                       [](kvm_msr_entry& entry) {
                         entry.data = entry.index * 10ULL;
                         return entry.index != 150;
                       },
                   .ask_kvm =
                       [this](kvm_msrs& list) {
                         asked.emplace_back();
                         for (std::uint32_t i = 0; i < list.nmsrs; ++i) asked.back().push_back(list.entries[i].index);
                         if (broken != 0) {
                           errno = broken;
                           return -1;
                         }
                         for (std::uint32_t i = 0; i < list.nmsrs; ++i) {
                           if (list.entries[i].index >= 50) return static_cast<int>(i);
                           list.entries[i].data = list.entries[i].index + 1;
                         }
                         return static_cast<int>(list.nmsrs);
                       }};
};

using Values = std::vector<std::uint64_t>;
using Asked = std::vector<std::vector<std::uint32_t>>;

TEST_F(MsrLists, EachIsServedByItsOwner) {
  List list{{1, 2, 100, 101, 3, 102}};
  EXPECT_EQ(serve_msrs(list.msrs(), owners), 6);
  EXPECT_EQ(list.values(), (Values{2, 3, 1000, 1010, 4, 1020}));
  EXPECT_EQ(asked, (Asked{{1, 2}, {3}}));
}

// Documentation/virt/kvm/api.rst, KVM_GET_MSRS: stops at the first MSR that cannot be read, and returns how many were.
TEST_F(MsrLists, TheFirstThatCannotBeServedEndsIt) {
  List of_kvm{{100, 1, 60, 2, 101}}, of_ours{{1, 150, 2}}, first{{150, 1}};
  EXPECT_EQ(serve_msrs(of_kvm.msrs(), owners), 2);
  EXPECT_EQ(of_kvm.values(), (Values{1000, 2, 0, 0, 0}));
  EXPECT_EQ(serve_msrs(of_ours.msrs(), owners), 1);
  EXPECT_EQ(serve_msrs(first.msrs(), owners), 0);
  EXPECT_EQ(asked, (Asked{{1, 60, 2}, {1}})) << "nothing behind it is asked for";
}

TEST_F(MsrLists, WhatKvmRefusesAsAWholeFails) {
  broken = EFAULT;
  List list{{1, 100}};
  EXPECT_EQ(serve_msrs(list.msrs(), owners), -1);
  EXPECT_EQ(errno, EFAULT);
  List ours{{100}}, none{{}}, long_one{std::vector<std::uint32_t>(256, 100)};
  EXPECT_EQ(serve_msrs(ours.msrs(), owners), 1);
  EXPECT_EQ(serve_msrs(none.msrs(), owners), 0);
  EXPECT_EQ(serve_msrs(long_one.msrs(), owners), -1) << "KVM takes fewer than 256";
}

TEST(MsrIndexList, HasKvmsAndOursOnce) {
  const std::vector<std::uint32_t> ours{0xC1, 0x186};
  const auto kvm = [](kvm_msr_list& list) {
    if (list.nmsrs < 2) return -1;
    list.nmsrs = 2;
    list.indices[0] = 0x10;
    list.indices[1] = 0xC1;
    return 0;
  };
  std::vector<std::uint32_t> room(4);
  auto& list = *reinterpret_cast<kvm_msr_list*>(room.data());
  list.nmsrs = 2;
  EXPECT_EQ(list_msrs(list, ours, kvm), -1);
  EXPECT_EQ(errno, E2BIG);
  EXPECT_EQ(room, (std::vector<std::uint32_t>{3, 0, 0, 0})) << "how many there are";
  EXPECT_EQ(list_msrs(list, ours, kvm), 0);
  EXPECT_EQ(room, (std::vector<std::uint32_t>{3, 0x10, 0xC1, 0x186}));
}

}  // namespace
}  // namespace vmm

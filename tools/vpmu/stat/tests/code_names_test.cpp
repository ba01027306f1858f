#include "stat/code_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "files/input_file.hpp"
#include "snapshot/checksum.hpp"
#include "vpmu/address.hpp"

// Code gets its name from the file whose page has the same bytes. The oracle is this program itself: the dynamic linker
// knows where it has loaded it.

extern "C" __attribute__((noinline, used)) int vpmu_code_that_has_a_name(int n) { return n * 3; }

namespace vmm::tool {
namespace {

std::vector<std::byte> this_program() {
  const auto bytes = read_whole_file("/proc/self/exe", {.what = "this program", .advice = ""}, 1U << 30U);
  EXPECT_TRUE(bytes.has_value());
  return bytes.value_or(std::vector<std::byte>{});
}

/// As a guest would run it.
CodePlace place_of(const void* code) {
  const auto rip = reinterpret_cast<std::uint64_t>(code);
  const auto* const page = static_cast<const std::byte*>(code) - rip % vpmu::page_size;
  Checksum sum;
  sum.add({page, vpmu::page_size});
  return {.rip = rip, .page = sum.value()};
}
CodePlace own_place() { return place_of(reinterpret_cast<const void*>(&vpmu_code_that_has_a_name)); }

CodeName name_of(const CodeNames& names, const CodePlace& place) {
  const auto found = names.find(std::array{place});
  return found.size() == 1 ? found.front() : CodeName{};
}

TEST(CodeNames, ComeFromTheFileWithTheSamePage) {
  CodeNames names;
  EXPECT_EQ(name_of(names, own_place()), (CodeName{"[unknown]", "[anonymous]"}));
  names.add_file("/bin/mine", this_program());
  EXPECT_EQ(name_of(names, own_place()), (CodeName{"vpmu_code_that_has_a_name", "/bin/mine"}));
  CodePlace other = own_place();
  ++other.page;
  EXPECT_EQ(name_of(names, other), (CodeName{"[unknown]", "[anonymous]"}));
}

TEST(CodeNames, OfCxxAreReadable) {
  CodeNames names;
  names.add_file("mine", this_program());
  const auto member = place_of(reinterpret_cast<const void*>(&interpreter_of));
  EXPECT_TRUE(name_of(names, member).function.starts_with("vmm::tool::interpreter_of"))
      << name_of(names, member).function;
}

// The same page may be in a copy of the file. What else of it is loaded decides.
TEST(CodeNames, OfAPageInTwoFilesFollowTheOthers) {
  const auto program = this_program();
  auto copy = program;
  // Another last byte of the code's second page: then that page is of one of them only.
  const CodePlace place = own_place();
  const auto at = [&](std::uint64_t page) {
    for (std::size_t offset = 0; offset + vpmu::page_size <= program.size(); offset += vpmu::page_size) {
      Checksum sum;
      sum.add(std::span{program}.subspan(offset, vpmu::page_size));
      if (sum.value() == page) return offset;
    }
    return std::size_t{0};
  }(place.page);
  ASSERT_NE(at, 0U);
  copy[at + 2 * vpmu::page_size - 1] ^= std::byte{1};
  CodeNames names;
  names.add_file("copy", copy);
  names.add_file("mine", program);
  EXPECT_EQ(name_of(names, place).file, "copy") << "the first one, if nothing else is known";
  const CodePlace next =
      place_of(reinterpret_cast<const void*>(place.rip - place.rip % vpmu::page_size + vpmu::page_size));
  const auto found = names.find(std::array{place, next});
  EXPECT_EQ(found[0].file, "mine");
  EXPECT_EQ(found[1].file, "mine");
}

TEST(CodeNames, OfTheKernelEndWhereDataBegin) {
  CodeNames names;
  names.add_kernel(
      "ffffffff81000000 T _stext\nffffffff81000100 t do_it\nffffffff81000100 T __alias\nffffffff81000200 D data\n"
      "no line\nffffffffc0000000 t of_module\t[virtiofs]\n");
  const auto name = [&names](std::uint64_t rip) { return name_of(names, {.rip = rip}); };
  EXPECT_EQ(name(0xFFFF'FFFF'8100'00FF), (CodeName{"_stext", "[kernel]"}));
  EXPECT_EQ(name(0xFFFF'FFFF'8100'0123), (CodeName{"do_it", "[kernel]"}));
  EXPECT_EQ(name(0xFFFF'FFFF'8100'0234), (CodeName{"[unknown]", "[kernel]"}));
  EXPECT_EQ(name(0xFFFF'FFFF'C000'0010), (CodeName{"of_module", "[virtiofs]"}));
  EXPECT_EQ(name(0xFFFF'FFFF'8000'0000), (CodeName{"[unknown]", "[kernel]"}));
}

TEST(CodeNames, OfADamagedFileAreFewer) {
  const auto program = this_program();
  for (std::size_t size : {std::size_t{0}, std::size_t{3}, std::size_t{64}, std::size_t{200}, program.size() / 2}) {
    CodeNames names;
    names.add_file("cut", std::span{program}.first(size));
    (void)name_of(names, own_place());
  }
  // Numbers in the headers that lead nowhere.
  for (std::size_t at = 0; at < 4096; ++at) {
    auto damaged = std::vector<std::byte>(program.begin(), program.begin() + 4096);
    damaged[at] = std::byte{0xFF};
    CodeNames names;
    names.add_file("damaged", damaged);
    (void)debug_file_of(damaged);
    (void)interpreter_of(damaged);
  }
}

TEST(CodeNames, WhatRunsAFileIsKnown) {
  EXPECT_TRUE(interpreter_of(this_program()).starts_with("/lib")) << interpreter_of(this_program());
  const auto script = [](const std::string& text) { return interpreter_of(std::as_bytes(std::span{text})); };
  EXPECT_EQ(script("#!/bin/sh\necho"), "/bin/sh");
  EXPECT_EQ(script("#! /usr/bin/env python3\n"), "/usr/bin/env");
  EXPECT_EQ(script("#!"), "");
  EXPECT_EQ(script("text"), "");
}

}  // namespace
}  // namespace vmm::tool

#pragma once
#include <gtest/gtest.h>

#include <string>

#include "vpmu/generation.hpp"

namespace vpmu::test {

/// What a test of each generation is called by: GoogleTest takes no hyphens.
inline std::string generation_name(const testing::TestParamInfo<const GenerationDesc*>& info) {
  std::string name{info.param->name};
  std::erase(name, '-');
  return name;
}

}  // namespace vpmu::test

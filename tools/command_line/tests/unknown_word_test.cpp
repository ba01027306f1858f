#include <gtest/gtest.h>

#include "sample_program.hpp"

namespace vmm::tool::test {
namespace {

TEST(UnknownWord, IsNamedWithTheNearestThatThereIs) {
  SampleProgram sample;
  EXPECT_EQ(sample.refused("boto -- x"), "no command boto; the nearest is boot");
  EXPECT_EQ(sample.refused("report hsow a"), "no command hsow; the nearest is show");
  EXPECT_EQ(sample.refused("boot --modle haswell --kernel k -- x"), "no option --modle; the nearest is --model");
  EXPECT_EQ(sample.refused("boot --acel=kvm --kernel k -- x"), "no option --acel; the nearest is --accel");
  EXPECT_EQ(sample.refused("boot --kernle k -- x"), "no option --kernle; the nearest is --kernel") << "of a group";
  EXPECT_EQ(sample.refused("--verison"), "no option --verison; the nearest is --version");
}

TEST(UnknownWord, IsNamedAloneWhereNothingIsLikeIt) {
  SampleProgram sample;
  EXPECT_EQ(sample.refused("fly"), "no command fly");
  EXPECT_EQ(sample.refused("secrte"), "no command secrte") << "hidden ones are told to nobody";
  EXPECT_EQ(sample.refused("boot --kernel k --warp -- x"), "no option --warp");
}

TEST(UnknownWord, OfACommandIsToldWhereToPutIt) {
  SampleProgram sample;
  EXPECT_EQ(
      sample.refused("boot --kernel k ls -l /"),
      "no option -l of sample boot; if it is of the command, put -- before that: sample boot --kernel k -- ls -l /");
}

// Values of options, and words behind --, are nobody's options.
TEST(UnknownWord, IsNotWhatTheParserRefusesOtherwise) {
  SampleProgram sample;
  EXPECT_EQ(sample.refused("boot --kernel k -mhaswell --cpus 5 -- x --warp"), "--cpus: 5 is not a number from 1 to 4");
  EXPECT_EQ(sample.refused("boot --kernel boto --accel xen -- x").substr(0, 8), "--accel:");
  EXPECT_NE(sample.refused("boot -- x"), "");
  EXPECT_EQ(sample.refused("boot --kernel k -- x"), "");
}

}  // namespace
}  // namespace vmm::tool::test

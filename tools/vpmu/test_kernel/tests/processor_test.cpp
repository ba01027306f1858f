#include "test_kernel/guest/processor.hpp"

#include <gtest/gtest.h>

#include "test_kernel/expectations.hpp"

namespace vmm::tool {
namespace {

TEST(Processor, IsReadFromTheArgumentsOfEachModel) {
  for (const MachineModel& model : all_machine_models()) {
    const auto arguments = checker_arguments(model, 2);
    const auto processor = checker::read_processor({arguments.begin(), arguments.end()});
    ASSERT_TRUE(processor) << model.name;
    const vpmu::GenerationDesc& pmu = vpmu::describe(model.generation);
    EXPECT_EQ(processor->driver, linux_driver(model).name);
    EXPECT_EQ(processor->counters, pmu.gp_counters);
    EXPECT_EQ(processor->branches, pmu.lbr_depth);
    EXPECT_EQ(processor->pebs_format, pmu.pebs_format);
    EXPECT_EQ(processor->loads, pmu.load_latency_code + 256U * pmu.load_latency_umask);
    EXPECT_EQ(processor->wrong, "");
  }
}

TEST(Processor, IsNotReadFromWhatIsNoArgument) {
  EXPECT_TRUE(checker::read_processor({"wrong=bts"}));
  for (const std::string_view bad : {"", "version", "version=", "version=x", "version=3 ", "version=-1", "known=2",
                                     "speed=3", "=3", "version=99999999999"})
    EXPECT_FALSE(checker::read_processor({bad})) << bad;
}

}  // namespace
}  // namespace vmm::tool

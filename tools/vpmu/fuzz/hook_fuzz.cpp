#include <string>
#include <string_view>

#include "fuzz_input.hpp"
#include "virt/hook.hpp"
#include "virt/xml.hpp"

// Random text as a domain's definition and as KubeVirt's VMI: `vpmu virt hook` refuses it, or returns a definition that
// has the PMU, and from which disabling restores the original.

namespace {

using vpmu::fuzz::require;
using namespace vmm::tool;

constexpr std::string_view separator = "\n---\n";
std::uint64_t domains_enabled = 0;

const VirtOptions options{.model = "haswell", .source = "exact", .wrapper = "/opt/vpmu/qemu-vpmu"};

void check_enabled(const std::string& before, const std::string& after) {
  const auto status = virt_status(after);
  require(status.has_value() && status->enabled, "what the hook gives is enabled");
  require(status->changed.empty(), "and as it was told");
  const auto again = enable_virt(after, {.model = status->model, .source = status->source, .wrapper = status->wrapper});
  require(again.has_value(), "what is enabled can be enabled again");
  const auto back = disable_virt(after);
  require(back.has_value(), "what is enabled can be disabled");
  const auto was = virt_status(before);
  require(was.has_value(), "what was enabled was a definition");
  if (was->enabled) return;  // enabled by somebody else, who may have recorded another original
  // Equal except for white space between elements.
  const auto one = XmlDocument::parse(before), other = XmlDocument::parse(*back);
  require(other.has_value() && equivalent(one->root(), other->root()), "the way back leads to what it was");
  const auto differs = difference(before, after, {});
  require(differs.has_value() && differs->empty(), "and nothing else has changed");
  ++domains_enabled;
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return domains_enabled; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all{reinterpret_cast<const char*>(data), size};
  const auto at = all.find(separator);
  const auto vmi = at == std::string_view::npos ? std::string_view{} : all.substr(0, at);
  const std::string xml{at == std::string_view::npos ? all : all.substr(at + separator.size())};
  const auto hooked = define_domain_hook(vmi, xml, options);
  if (!hooked) {
    require(hooked.error().what.find('\n') == std::string::npos, "a refusal is one line");
    return 0;
  }
  check_enabled(xml, *hooked);
  return 0;
}

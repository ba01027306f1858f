#include "virt/hook.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace vmm::tool {
namespace {

using Json = nlohmann::json;

/// An annotation's text; null when there is none.
const Json* annotation(const Json& vmi, const char* name) {
  const Json* at = &vmi;
  for (const char* const key : {"metadata", "annotations", name}) {
    const auto found = at->is_object() ? at->find(key) : at->end();
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

Result<void> take(const Json& vmi, const char* name, std::string& target) {
  const Json* const value = annotation(vmi, name);
  if (value == nullptr) return {};
  if (!value->is_string())
    return usage_error(fmt::format("the annotation {} of the VMI is not a text", name), "write its value in quotes");
  if (value->get_ref<const std::string&>().empty())
    return usage_error(fmt::format("the annotation {} of the VMI is empty", name), "give it a value, or leave it out");
  target = value->get<std::string>();
  return {};
}

}  // namespace

Result<std::string> define_domain_hook(std::string_view vmi, const std::string& xml, VirtOptions options) {
  if (!vmi.empty()) {
    const auto parsed = Json::parse(vmi, nullptr, false);
    if (!parsed.is_object())
      return usage_error("the VMI is not a JSON object", "give it as KubeVirt does: --vmi '{\"metadata\": ...}'");
    VMM_TRY(take(parsed, "vpmu/model", options.model));
    VMM_TRY(take(parsed, "vpmu/source", options.source));
  }
  if (options.model.empty()) return xml;
  return enable_virt(xml, options);
}

}  // namespace vmm::tool

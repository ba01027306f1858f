#pragma once
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "virt/domains.hpp"

namespace vmm::tool::test {

/// A hypervisor that keeps definitions as `reword` changes them, and refuses those whose numbers are in `refused`.
class FakeDomains final : public Domains {
 public:
  explicit FakeDomains(DomainDefinition only) : only_{std::move(only)} {}

  Result<DomainDefinition> read(const std::string& name) override {
    if (name != only_.name) return usage_error("no domain " + name);
    return only_;
  }
  Result<std::vector<DomainDefinition>> read_all() override { return std::vector{only_}; }
  Result<void> define(const std::string& xml) override {
    const bool refuse = refused.contains(defined++);
    if (refuse) return host_error("libvirt does not take the definition");
    only_.xml = reword(xml);
    return {};
  }
  [[nodiscard]] bool local() const override { return here; }
  [[nodiscard]] VirtDriver driver() const override { return {}; }

  [[nodiscard]] const std::string& xml() const { return only_.xml; }
  int defined{};
  bool here{true};
  std::set<int> refused;
  std::function<std::string(const std::string&)> reword{[](const std::string& xml) { return xml; }};

 private:
  DomainDefinition only_;
};

}  // namespace vmm::tool::test

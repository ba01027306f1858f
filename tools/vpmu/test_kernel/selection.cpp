#include "test_kernel/selection.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "test_kernel/expectations.hpp"

namespace vmm::tool {
namespace {

Result<Shard> read_shard(const std::string& text) {
  Shard shard;
  if (text.empty()) return shard;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, shard.number);
  const bool has_slash = first.ec == std::errc{} && first.ptr != end && *first.ptr == '/';
  const auto second = has_slash ? std::from_chars(first.ptr + 1, end, shard.count) : first;
  if (!has_slash || second.ec != std::errc{} || second.ptr != end || shard.number < 1 || shard.number > shard.count ||
      shard.count > max_shards)
    return usage_error("--shard " + printable(text) + " is not a shard", "give I/N: 2/3 is the second of three");
  return shard;
}

std::vector<const MachineModel*> one_of_each() {
  std::vector<const MachineModel*> models;
  std::set<std::string_view> drivers;
  for (const MachineModel& model : all_machine_models())
    if (drivers.insert(linux_driver(model).name).second && linux_driver(model).known) models.push_back(&model);
  return models;
}

Result<std::vector<const MachineModel*>> named(const std::string& list) {
  std::vector<const MachineModel*> models;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, end - at);
    const MachineModel* const model = find_machine_model(name);
    if (model == nullptr) return usage_error("no model " + printable(name), "`vpmu models` lists them");
    if (std::ranges::find(models, model) == models.end()) models.push_back(model);
    at = end + 1;
  }
  return models;
}

}  // namespace

Result<Selection> select_models(const std::string& models, const std::string& shard) {
  Selection selection;
  VMM_ASSIGN(selection.shard, read_shard(shard));
  if (models == "all") {
    for (const MachineModel& model : all_machine_models()) selection.all.push_back(&model);
  } else if (models.empty()) {
    selection.all = one_of_each();
  } else {
    VMM_ASSIGN(selection.all, named(models));
  }
  for (std::size_t i = 0; i < selection.all.size(); ++i)
    if (shard_of(i, selection.shard.count) == selection.shard.number) selection.own.push_back(selection.all[i]);
  if (selection.own.empty()) return usage_error("no model is left for --shard " + printable(shard), "give fewer parts");
  return selection;
}

}  // namespace vmm::tool

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "files/input_file.hpp"
#include "stat/counts.hpp"

namespace vmm::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t max_text_length = max_document_bytes;
constexpr std::size_t max_document_events = 1024, max_words = 65536, max_functions = 1U << 20U, max_files = 1U << 17U;

/// Reads members; remembers the first one that is missing or of the wrong type.
class Reader {
 public:
  explicit Reader(const Json& object) : object_{&object} {}
  template <class Number>
  void number(const char* key, Number& target, bool required = true) {
    const Json* const value = member(key, required);
    if (value == nullptr) return;
    if (!value->is_number_unsigned() ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<Number>::max()))
      return refuse(key, "is not a whole number in range");
    target = value->get<Number>();
  }
  void text(const char* key, std::string& target, bool required = true) {
    const Json* const value = member(key, required);
    if (value == nullptr) return;
    if (!value->is_string()) return refuse(key, "is not a text");
    target = value->get<std::string>();
  }
  const Json* array(const char* key, std::size_t max, bool required = true) {
    const Json* const value = member(key, required);
    if (value == nullptr && !required) return nullptr;
    if (value != nullptr && value->is_array() && value->size() <= max) return value;
    refuse(key, "is not a list, or too long");
    return nullptr;
  }
  void refuse(const std::string& key, const char* why) {
    if (wrong_.empty()) wrong_ = fmt::format("\"{}\" {}", key, why);
  }
  [[nodiscard]] const std::string& wrong() const { return wrong_; }

 private:
  const Json* member(const char* key, bool required) {
    const auto found = object_->find(key);
    if (found != object_->end()) return &*found;
    if (required) refuse(key, "is missing");
    return nullptr;
  }
  const Json* object_;
  std::string wrong_;
};

std::string read_event(const Json& json, StatCount& count) {
  if (!json.is_object()) return "an event is not an object";
  Reader reader{json};
  reader.text("name", count.name);
  reader.text("unit", count.unit, false);
  reader.text("quality", count.quality);
  const auto value = json.find("value");
  if (value == json.end() || *value != not_counted) reader.number("value", count.value.emplace());
  // Documents of version 0.2 have 0 there.
  if (!is_delivered(count.quality)) count.value.reset();
  reader.number("running_ns", count.running_ns, false);
  reader.number("enabled_ns", count.enabled_ns, false);
  return reader.wrong();
}

std::string read_function(const Json& json, StatFunction& function) {
  if (!json.is_object()) return "a function is not an object";
  Reader reader{json};
  reader.text("function", function.name);
  reader.text("file", function.file);
  const auto counts = json.find("counts");
  if (counts == json.end() || !counts->is_object() || counts->size() > max_document_events)
    return "a function has no \"counts\"";
  for (const auto& [name, count] : counts->items()) {
    if (!count.is_number_unsigned()) return "a count is not a whole number";
    function.counts[name] = count.get<std::uint64_t>();
  }
  return reader.wrong();
}

std::string read_file(const Json& json, StatFile& file) {
  if (!json.is_object()) return "a file is not an object";
  Reader reader{json};
  reader.text("path", file.path);
  reader.number("bytes", file.bytes);
  reader.text("checksum", file.checksum);
  return reader.wrong();
}

/// What is wrong; empty: nothing.
std::string read(const Json& json, StatDocument& document) {
  if (!json.is_object()) return "it is not an object";
  Reader reader{json};
  std::int64_t format{};
  reader.number("format", format);
  if (reader.wrong().empty() && format != StatDocument::format)
    return fmt::format("it has format {}, not {}", format, StatDocument::format);
  reader.text("vpmu", document.version);
  reader.text("model", document.model);
  reader.text("accel", document.accel);
  reader.text("source", document.source);
  if (json.contains("time")) reader.text("time", document.time);
  reader.text("set", document.set, false);
  reader.text("counter", document.counter, false);
  reader.text("kernel", document.kernel);
  reader.number("memory_bytes", document.memory_bytes);
  reader.text("environment", document.environment);
  if (const Json* const words = reader.array("command", max_words)) {
    for (const Json& word : *words) {
      if (!word.is_string()) return "\"command\" has a word that is not a text";
      document.command.push_back(word.get<std::string>());
    }
  }
  reader.number("exit_code", document.exit_code);
  reader.number("runs", document.runs, false);
  if (const Json* const events = reader.array("events", max_document_events)) {
    for (const Json& event : *events)
      if (const std::string wrong = read_event(event, document.events.emplace_back()); !wrong.empty()) return wrong;
  }
  if (const Json* const functions = reader.array("functions", max_functions, false))
    for (const Json& function : *functions)
      if (std::string wrong = read_function(function, document.functions.emplace_back()); !wrong.empty()) return wrong;
  if (const Json* const files = reader.array("files", max_files, false))
    for (const Json& file : *files)
      if (std::string wrong = read_file(file, document.files.emplace_back()); !wrong.empty()) return wrong;
  reader.number("lost_files", document.lost_files, false);
  return reader.wrong();
}

}  // namespace

std::string to_json(const StatDocument& document) {
  Json events = Json::array();
  for (const StatCount& count : document.events) {
    Json event = {{"name", count.name}, {"value", count.value ? Json(*count.value) : Json(not_counted)}};
    if (!count.unit.empty()) event["unit"] = count.unit;
    event["quality"] = count.quality;
    if (count.running_ns != count.enabled_ns) {
      event["running_ns"] = count.running_ns;
      event["enabled_ns"] = count.enabled_ns;
    }
    if (document.runs > 1) event["deviation_percent"] = count.deviation;
    events.push_back(std::move(event));
  }
  Json json = {{"format", StatDocument::format},
               {"vpmu", document.version},
               {"model", document.model},
               {"accel", document.accel},
               {"source", document.source},
               {"time", document.time},
               {"set", document.set},
               {"counter", document.counter},
               {"kernel", document.kernel},
               {"memory_bytes", document.memory_bytes},
               {"environment", document.environment},
               {"command", document.command},
               {"exit_code", document.exit_code},
               {"runs", document.runs},
               {"events", std::move(events)}};
  for (const StatMetric& metric : document.metrics)
    json["metrics"].push_back({{"name", metric.name},
                               {"value", metric.value ? Json(*metric.value) : Json(not_counted)},
                               {"unit", metric.unit}});
  for (const StatRegion& region : document.regions) {
    Json counts = Json::object();
    for (const StatCount& count : region.events)
      counts[count.name] = count.value ? Json(*count.value) : Json(not_counted);
    json["regions"].push_back({{"label", region.label}, {"times", region.times}, {"events", std::move(counts)}});
  }
  for (const StatFunction& function : document.functions)
    json["functions"].push_back({{"function", function.name}, {"file", function.file}, {"counts", function.counts}});
  for (const StatFile& file : document.files)
    json["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  if (document.lost_files != 0) json["lost_files"] = document.lost_files;
  // A command's words may have any bytes: those that are not UTF-8 become U+FFFD.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

Result<StatDocument> read_measurement(const std::string& path) {
  VMM_ASSIGN(const auto bytes,
             read_whole_file(path, {.what = "the measurement", .advice = "give a result of `vpmu stat --json`"},
                             max_document_bytes));
  return read_stat_document({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<StatDocument> read_stat_document(std::string_view text, const std::string& path) try {
  const auto refuse = [&path](const std::string& why) {
    return usage_error(printable(path) + " is not a result of `vpmu stat --json`: " + printable(why),
                       "give one that it has written");
  };
  if (text.size() > max_text_length) return refuse("it is too long");
  // Our own documents have three levels.
  constexpr int deepest = 8;
  const auto shallow = [](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) { return depth <= deepest; };
  const Json json = Json::parse(text, shallow, false);
  if (json.is_discarded()) return refuse("it is not JSON");
  StatDocument document;
  if (const std::string wrong = read(json, document); !wrong.empty()) return refuse(wrong);
  return document;
} catch (const std::exception& error) {
  return usage_error(printable(path) + " cannot be read: " + printable(error.what()),
                     "give a result of `vpmu stat --json`");
}

}  // namespace vmm::tool

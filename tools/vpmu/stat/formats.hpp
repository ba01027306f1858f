#pragma once
#include <string>

#include "stat/counts.hpp"

namespace vmm::tool {

/// Name, value and quality of each event, and the metrics, as `perf stat` lays them out.
std::string to_table(const StatDocument& document);

/// As `perf stat -x`: a line for each event and metric, its fields with `separator` between them.
std::string to_fields(const StatDocument& document, const std::string& separator);

/// As `perf stat -j`: a line with a JSON object for each event and metric.
std::string to_json_lines(const StatDocument& document);

}  // namespace vmm::tool

#pragma once

#include <vector>

#include <prometheus/metric_family.h>

namespace megalith {

// What the system says of this process, by the names that Prometheus' clients have for it: memory, open files, processor
// time and start. What cannot be read is left out.
std::vector<prometheus::MetricFamily> process_metrics();

}  // namespace megalith

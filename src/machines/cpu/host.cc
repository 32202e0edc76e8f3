#include "machines/host.h"

#include "machines/cpu/instruction_set.h"
#include "machines/cpu/topology.h"

namespace megalith {

Host describe_host(int threads) {
  return {processor_name(), instruction_set_name(), missing_wishes(read_topology(), threads)};
}

}  // namespace megalith

#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/devices.hpp"

namespace {

constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE

bool is_available(const std::string& name) {
  const std::vector<kvreplay::DeviceInfo> all = kvreplay::devices();
  return std::any_of(all.begin(), all.end(), [&](const kvreplay::DeviceInfo& device) { return device.name == name; });
}

}  // namespace

int main(int argc, char** argv) {
  const char* const device = std::getenv("KVREPLAY_TEST_DEVICE");
  if (device != nullptr && !is_available(device)) {
    std::printf("skipped: there is no device %s here: %s\n", device, kvreplay::why_not(device).c_str());
    return kSkipped;
  }
  // Catch returns the number of failures; 77 failures must not count as skipped.
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;
}

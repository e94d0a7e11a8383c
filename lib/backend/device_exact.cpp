#include "backend/device_exact.hpp"

#include "backend/device_head.hpp"

namespace kvreplay {

class DeviceExact::Head final : DeviceHead {
 public:
  Head(Runtime& runtime, const HeadStream<float>& stream)
      : DeviceHead(runtime, stream),
        queue_(runtime),
        rows_(load_rows(rows_of(stream))),
        lists_({}, rows_.tokens, stream.prompt, stream.shape.heads),
        keys_(lists_.upload(runtime)),
        sums_(make_sums(lists_.parts(), rows_.tokens.size(), true)) {}
  void pass() {
    const Exact exact = attend(rows_, keys_, sums_, true);
    queue_.wait();
  }

 private:
  static std::vector<int32_t> rows_of(const HeadStream<float>& stream) {
    std::vector<int32_t> tokens;
    for (int32_t t = stream.prompt; t < stream.tokens; ++t)
      if (stream.query_row[size_t(t)] >= 0) tokens.push_back(t);
    return tokens;
  }
  Runtime& queue_;
  Rows rows_;
  KeyLists lists_;
  KeyLists::OnDevice keys_;
  Sums sums_;
};

DeviceExact::DeviceExact(std::unique_ptr<Runtime> runtime, const HeadStream<float>& stream)
    : runtime_(std::move(runtime)), head_(std::make_unique<Head>(*runtime_, stream)) {}
DeviceExact::~DeviceExact() = default;

void DeviceExact::pass() { head_->pass(); }

}  // namespace kvreplay

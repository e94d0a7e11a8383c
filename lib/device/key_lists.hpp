#pragma once
#include <cstdint>
#include <vector>

#include "caches/bands.hpp"
#include "device/kernels/merge_kernel.hpp"
#include "device/runtime.hpp"
#include "evaluate/head_device.hpp"

namespace kvreplay {

// The tokens that tiles of rows attend to, for all caches together: lists of tokens (AttendPart), and which of them
// each cache adds up (PartRef). Part 0 is the prompt and part 1 everything after it, for every query head: together
// they are exact attention, and part 1 also belongs to every cache that keeps all later tokens. Caches of a family
// share parts (caches/bands.hpp).
class KeyLists {
 public:
  // rows: ascending tokens; the first `prompt` tokens are the prompt. wholes: also builds a list of everything that
  // each cache holds, except a run after the prompt.
  KeyLists(const std::vector<DeviceCache>& caches, const std::vector<int32_t>& rows, int32_t prompt, int32_t heads,
           bool wholes = false);

  // The first refs() are those of exact attention.
  static constexpr int32_t kExactRefs = 2;

  size_t parts() const { return parts_.size(); }
  size_t entries() const { return tokens_.size(); }  // in all lists
  const std::vector<PartRef>& refs() const { return refs_; }
  struct Lists {
    PartList all, set;
  };
  const std::vector<Lists>& caches() const { return lists_; }  // one for each cache

  // In the memory of a device; the pointers are valid as long as this object.
  struct OnDevice {
    DeviceArray<int32_t> tokens, until;
    DeviceArray<float> num, den;
    DeviceArray<KeySpan> spans;
    DeviceArray<AttendPart> parts;
    DeviceArray<PartRef> refs;
    std::vector<AttendPart> wholes;  // one for each cache
  };
  OnDevice upload(Runtime& runtime) const;

 private:
  struct Part {
    bool run = false;  // consecutive tokens of the trace
    bool weighted = false, leaves = false;
    size_t tokens = 0, until = 0, weights = 0, spans = 0;  // where its own begin
    int32_t first_head = 0, heads = 0;
  };
  // Tokens, ascending, with what a cache says of each.
  struct Entries {
    std::vector<int32_t> token, until;
    std::vector<float> num, den;
    size_t size() const { return token.size(); }
    void add(int32_t one, int32_t leaves, double numerator, double denominator);
  };
  int32_t add_run(int32_t heads, int32_t first, int32_t last);
  int32_t add_set(const DeviceCache& cache, const Entries& entries, bool weighted);
  int32_t add_moving(const DeviceCache& cache);
  Part& open_part(const DeviceCache& cache);
  void add_family(const std::vector<DeviceCache>& caches, const std::vector<size_t>& family);
  void list_moving(size_t id, const DeviceCache& cache);
  void list_wholes(const std::vector<DeviceCache>& caches);
  static Entries entries_of(const Residency& held);
  static Entries entries_of(const Band& band);
  AttendPart on_device(const Part& part, const OnDevice& memory) const;

  static constexpr int32_t kRows = 64;  // rows of a tile
  const std::vector<int32_t>& rows_;
  std::vector<Part> parts_, wholes_;
  std::vector<KeySpan> spans_;
  // Lists one behind the other. Only lists whose tokens leave have `until`, and only weighted ones weights.
  std::vector<int32_t> tokens_, until_;
  std::vector<float> num_, den_;
  std::vector<PartRef> refs_;
  std::vector<Lists> lists_;
  int32_t prompt_;
};

}  // namespace kvreplay

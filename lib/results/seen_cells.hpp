#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "catalog/method.hpp"
#include "results/note.hpp"
#include "results/shards.hpp"

namespace kvreplay {

// The part of a row that notes need, in a few bytes: tables may hold hundreds of thousands of rows.
struct SeenCell {
  uint32_t instance = 0, head = 0;  // indices in SeenCells
  int32_t budget = 0;               // tokens; 0: none
  uint32_t holds = 0;               // kinds of notes that hold for this cell alone, as bits
  uint64_t seed = 0;                // hash of its text; 0: nothing is random
  uint64_t numbers = 0;             // hash of all measured columns except timings
  bool shares = false;              // its budget depends on its layer or on other heads
  bool has_error = false;           // above 0
  bool loses_mass = false;          // enough that its output should change
  bool has(NoteKind kind) const { return (holds >> uint32_t(kind) & 1U) != 0; }
  void set(NoteKind kind) { holds |= 1U << uint32_t(kind); }
};

// The cells of a table that have a result.
class SeenCells {
 public:
  // `methods` supply what methods declare; for an unknown method fewer notes are possible.
  explicit SeenCells(const Registry& methods) : methods_(methods) {}
  // Instances and heads are numbered in order of appearance.
  void add(const Fields& row);

  struct Head {
    uint32_t trace = 0;  // index
    std::string place;   // "prompt p0, layer 3, kv head 1"
  };
  const std::vector<SeenCell>& cells() const { return cells_; }
  const std::vector<NamedInstance>& instances() const { return instances_; }
  const std::vector<Head>& heads() const { return heads_; }
  const std::vector<std::string>& traces() const { return traces_; }
  // Whether every row identifies its instance; rows of old versions do not.
  bool has_instances() const { return has_instances_; }

 private:
  // Properties of a method with the parameters of some cells.
  struct Declared {
    bool known = false, oneshot = false, quantises = false, holds_all = false, shares = false;
    bool sloped = false;           // its budget follows from the layer and the kv head
    int32_t sinks = 0;             // first tokens that are always kept
    int32_t protected_tokens = 0;  // 0: it does not rank tokens by scores that other rules could use
  };
  Declared declared_of(const std::string& method, const std::string& params) const;
  const Declared& declared(const std::string& method, const std::string& params);
  uint32_t instance_of(const Fields& row);
  uint32_t head_of(const Fields& row);
  void note_budget(const Fields& row, const Declared& said, SeenCell& cell) const;

  const Registry& methods_;
  bool has_instances_ = true;
  std::vector<SeenCell> cells_;
  std::vector<NamedInstance> instances_;
  std::vector<Head> heads_;
  std::vector<std::string> traces_;
  std::map<std::pair<std::string, std::string>, uint32_t> instance_of_;
  std::unordered_map<std::string, uint32_t> head_of_, trace_of_;
  std::unordered_map<std::string, Declared> declared_;
};

}  // namespace kvreplay

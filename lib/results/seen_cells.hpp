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

// What notes need of a row, in a few bytes: tables may hold hundreds of thousands.
struct SeenCell {
  uint32_t instance = 0, head = 0;  // places in SeenCells
  int32_t budget = 0;               // tokens; 0: none
  uint32_t holds = 0;               // kinds of notes that hold for this cell alone
  uint64_t seed = 0;                // of its text; 0: nothing is random
  uint64_t numbers = 0;             // of all measured columns but times
  bool shares = false;              // its budget depends on its layer or on other heads
  bool has_error = false;           // above 0
  bool loses_mass = false;          // that its output should miss
  bool has(NoteKind kind) const { return (holds >> uint32_t(kind) & 1U) != 0; }
  void set(NoteKind kind) { holds |= 1U << uint32_t(kind); }
};

// The cells of a table that have a result.
class SeenCells {
 public:
  // What methods declare of themselves is asked of `methods`; of one that is none of them less can be said.
  explicit SeenCells(const Registry& methods) : methods_(methods) {}
  // Instances and heads stand in the order in which they come.
  void add(const Fields& row);

  struct Head {
    uint32_t trace = 0;  // place
    std::string place;   // "prompt p0, layer 3, kv head 1"
  };
  const std::vector<SeenCell>& cells() const { return cells_; }
  const std::vector<NamedInstance>& instances() const { return instances_; }
  const std::vector<Head>& heads() const { return heads_; }
  const std::vector<std::string>& traces() const { return traces_; }
  // Whether every row says which instance it is of; those of old versions do not.
  bool tells_instances() const { return tells_instances_; }

 private:
  // What a method says of itself with the parameters of some cells.
  struct Declared {
    bool known = false, oneshot = false, quantises = false, holds_all = false, shares = false;
    bool sloped = false;           // its budget follows from the layer and the kv head
    int32_t sinks = 0;             // first tokens that always stay
    int32_t protected_tokens = 0;  // 0: it ranks nothing by scores that others could use
  };
  Declared declared_of(const std::string& method, const std::string& params) const;
  const Declared& declared(const std::string& method, const std::string& params);
  uint32_t instance_of(const Fields& row);
  uint32_t head_of(const Fields& row);
  void say_of_budget(const Fields& row, const Declared& said, SeenCell& cell) const;

  const Registry& methods_;
  bool tells_instances_ = true;
  std::vector<SeenCell> cells_;
  std::vector<NamedInstance> instances_;
  std::vector<Head> heads_;
  std::vector<std::string> traces_;
  std::map<std::pair<std::string, std::string>, uint32_t> instance_of_;
  std::unordered_map<std::string, uint32_t> head_of_, trace_of_;
  std::unordered_map<std::string, Declared> declared_;
};

}  // namespace kvreplay

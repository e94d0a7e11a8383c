#pragma once
#include <optional>
#include <string>

#include "config/extents.hpp"
#include "config/problems.hpp"
#include "config/run_config.hpp"
#include "core/calibration.hpp"

namespace kvreplay {

// Problems of the calibrations that methods name, reported once for each method.
class CalibrationChecks {
 public:
  CalibrationChecks(const RunConfig& config, Problems& problems) : config_(config), problems_(problems) {}
  // Checks one layer of a replayed prompt. asks: the statistics that the method reads there.
  void check(size_t method, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
             StatisticsNeeds asks);

 private:
  const RunConfig& config_;
  Problems& problems_;
};

// What the selected prompts, layers and heads of a trace lack of what a configuration and its methods need. Every
// function reports to the problems.
class TraceChecks {
 public:
  TraceChecks(const RunConfig& config, Problems& problems)
      : config_(config), problems_(problems), calibrations_(config, problems) {}

  void check_prompts(const TraceInfo& trace);
  void check_layers(const TraceInfo& trace, const PromptInfo& prompt);
  void check_heads(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer);
  void check_gradient(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer);
  void check_text(const TraceInfo& trace, const PromptInfo& prompt);
  void check_needles(const TraceInfo& trace, const PromptInfo& prompt);
  void check_needs(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                   const std::optional<Extent>& extent);
  // A calibration prompt is scored like the replayed one.
  void check_calibration_prompt(const MethodInstance& instance, const TraceInfo& trace, const PromptInfo& prompt,
                                const Extent& extent);
  void refuse(const MethodInstance& instance, const char* verb, std::string rule, std::string remedy, Places places);

 private:
  void check_rope(size_t m, const PromptNeeds& needs, const TraceInfo& trace, const PromptInfo& prompt,
                  const LayerInfo& layer);
  void check_logits(const MethodInstance& instance, const TraceInfo& trace, const PromptInfo& prompt,
                    const LayerInfo& layer);
  void check_queries(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                     const PromptInfo& prompt, const LayerInfo& layer);
  // Reports recordings that only some traces and prompts hold, with the flag that records them.
  void report_missing(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                      const PromptInfo& prompt, const LayerInfo& layer);
  // Reports rows that were recorded behind a prompt of another length than the replayed one.
  void report_other_lengths(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                            const PromptInfo& prompt, const LayerInfo& layer, const Extent& extent);
  // The prompt statistics that a method needs do not depend on the budget.
  static PromptNeeds prompt_needs(const MethodInstance& instance, const LayerInfo& layer,
                                  const std::optional<Extent>& extent = {});
  const Wording& words() const { return problems_.words(); }

  const RunConfig& config_;
  Problems& problems_;
  CalibrationChecks calibrations_;
};

}  // namespace kvreplay

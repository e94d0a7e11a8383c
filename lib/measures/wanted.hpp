#pragma once

namespace kvreplay {

// Measures that take work of their own. What nobody asks for is not computed and has no value.
struct Wanted {
  bool spectral = true;   // by ||V||_op of every scored row, and bounds that are
  bool recalls = true;    // index_recall and mass_recall: a sort a row
  bool set_error = true;  // rel_err_set_mean: a product a tile, of methods that do more than to choose tokens
  bool prefix_error = true;  // rel_err_prefix_mean: a product over the prompt's rows, of one-shot methods
  bool curves = true;        // the error of every row
  bool bounds = true;        // how many rows keep to what a theorem promises
  bool quantiles = true;     // medians and the like of outputs: a partial sort a cell
  bool details = true;       // of an output's error: cosine, clamped, the numerator's and normaliser's parts
  bool ages = true;          // of evicted tokens, a number for each
  bool masses = true;        // normaliser and kept tokens against the exact row, and the bounds by them
};

}  // namespace kvreplay

#pragma once

namespace kvreplay {
const char* version();     // "0.1.0"
const char* git_commit();  // commit of the sources, or "unknown"
const char* compiler();
}  // namespace kvreplay

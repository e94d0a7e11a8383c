#pragma once
#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::app {

// What goes over a connection: a JSON object, and numbers behind it.
struct Message {
  std::string json;
  std::vector<std::byte> numbers;
};

// A process of Python that hosts methods (kvreplay.host), and ends with its connection. For one thread at a time.
// Whatever goes wrong is a ReplayError.
class Connection {
 public:
  explicit Connection(const std::string& python);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_over() const { return over_; }  // the process has ended

  void send(const std::string& json, std::span<const std::byte> numbers = {});
  Message receive();

 private:
  void send_all(const void* from, size_t bytes);
  void receive_all(void* to, size_t bytes);
  [[noreturn]] void give_up(const char* why);
  bool over_ = false;
  int socket_ = -1;
  pid_t process_ = -1;
};

}  // namespace kvreplay::app

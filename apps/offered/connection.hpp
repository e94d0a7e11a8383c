#pragma once
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

// A connection to the Python that hosts methods of installed packages (kvreplay.host), which has a process for each
// connection. For one thread at a time. Throws ReplayError.
class Connection {
 public:
  explicit Connection(const std::string& path);  // where the socket is
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_over() const { return over_; }  // the other end hung up

  void send(const std::string& json, std::span<const std::byte> numbers = {});
  Message receive();

 private:
  void send_all(const void* from, size_t bytes);
  void receive_all(void* to, size_t bytes);
  [[noreturn]] void give_up(const char* why);
  bool over_ = false;
  int socket_ = -1;
};

}  // namespace kvreplay::app

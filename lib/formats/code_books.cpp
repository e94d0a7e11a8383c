#include "formats/code_books.hpp"

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

namespace kvreplay {
namespace {

constexpr int kMostSweeps = 20'000;
constexpr double kPi = 3.14159265358979323846;

// Mass and first moment of a density over [a, b].
struct Moments {
  double mass, first;
};
using OfCell = std::function<Moments(double a, double b)>;

// Gauss-Legendre quadrature over [-1, 1]; Newton's method finds the nodes.
struct Quadrature {
  static constexpr int kNodes = 24;
  double x[kNodes], w[kNodes];
  Quadrature() {
    for (int i = 0; i < kNodes; ++i) {
      double z = std::cos(kPi * (i + 0.75) / (kNodes + 0.5)), slope = 1;
      for (int step = 0; step < 20; ++step) {
        double p = 1, before = 0;
        for (int n = 1; n <= kNodes; ++n) {
          const double older = before;
          before = p;
          p = ((2 * n - 1) * z * before - (n - 1) * older) / n;
        }
        slope = kNodes * (z * p - before) / (z * z - 1);
        z -= p / slope;
      }
      x[i] = z, w[i] = 2 / ((1 - z * z) * slope * slope);
    }
  }
  Moments operator()(const std::function<double(double)>& density, double a, double b) const {
    Moments m{0, 0};
    for (int i = 0; i < kNodes; ++i) {
      const double at = (a + b) / 2 + (b - a) / 2 * x[i], weight = w[i] * density(at) * (b - a) / 2;
      m.mass += weight, m.first += weight * at;
    }
    return m;
  }
};

// Integrates a cell of any width in pieces, each short enough for the quadrature to be exact to the last digits.
Moments integrate(const std::function<double(double)>& density, double a, double b, double piece) {
  static const Quadrature quadrature;
  Moments all{0, 0};
  const int pieces = std::max(1, int(std::ceil((b - a) / piece)));
  for (int i = 0; i < pieces; ++i) {
    const Moments m = quadrature(density, a + (b - a) * i / pieces, a + (b - a) * (i + 1) / pieces);
    all.mass += m.mass, all.first += m.first;
  }
  return all;
}

// Iterates from `levels` until no level moves any more.
std::vector<double> lloyd_max(std::vector<double> levels, double low, double high, const OfCell& cell) {
  const size_t n = levels.size();
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double moved = 0;
    std::vector<double> next(n);
    for (size_t i = 0; i < n; ++i) {
      const double a = i == 0 ? low : (levels[i - 1] + levels[i]) / 2;
      const double b = i + 1 == n ? high : (levels[i] + levels[i + 1]) / 2;
      const Moments m = cell(a, b);
      next[i] = m.mass > 0 ? m.first / m.mass : levels[i];
      moved = std::max(moved, std::fabs(next[i] - levels[i]));
    }
    levels = next;
    if (moved <= 1e-15 * (levels.back() - levels.front())) break;
  }
  return levels;
}

std::vector<double> middles(int32_t bits, double low, double high) {
  const size_t n = size_t(1) << bits;
  std::vector<double> levels(n);
  for (size_t i = 0; i < n; ++i) levels[i] = low + (high - low) * (double(i) + 0.5) / double(n);
  return levels;
}

// An even density has symmetric levels.
std::vector<double> made_symmetric(std::vector<double> levels) {
  const size_t n = levels.size();
  for (size_t i = 0; i < n / 2; ++i) {
    const double x = (levels[n - 1 - i] - levels[i]) / 2;
    levels[i] = -x, levels[n - 1 - i] = x;
  }
  return levels;
}

std::vector<double> make_gauss(int32_t bits) {
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * kPi); };
  const auto upper = [](double x) { return std::erfc(x / std::sqrt(2.0)) / 2; };
  const OfCell cell = [&](double a, double b) {
    const double mass = a > 0 ? upper(a) - upper(b) : upper(-b) - upper(-a);
    return Moments{mass, density(a) - density(b)};
  };
  return made_symmetric(lloyd_max(middles(bits, -2.5, 2.5), -INFINITY, INFINITY, cell));
}

std::vector<double> make_beta(int32_t bits, int32_t width) {
  const double power = (width - 3) / 2.0, root = std::sqrt(double(width)), piece = 0.5 / root;
  const auto density = [power](double x) { return std::pow(std::max(0.0, 1 - x * x), power); };
  const double reach = std::min(1.0, 2.5 / root);
  const OfCell cell = [&](double a, double b) { return integrate(density, a, b, piece); };
  std::vector<double> levels = made_symmetric(lloyd_max(middles(bits, -reach, reach), -1, 1, cell));
  for (double& level : levels) level *= root;
  return levels;
}

std::vector<double> make_angles(int32_t level, int32_t bits) {
  if (level == 1) return middles(bits, 0, 2 * kPi);
  const double power = double((1 << (level - 1)) - 1);
  const auto density = [power](double x) { return std::pow(std::max(0.0, std::sin(2 * x)), power); };
  const OfCell cell = [&](double a, double b) { return integrate(density, a, b, 0.1); };
  return lloyd_max(middles(bits, 0, kPi / 2), 0, kPi / 2, cell);
}

// Makes each code book once per process.
template <class Make>
std::vector<double> once(const std::tuple<int, int32_t, int32_t>& key, Make make) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int32_t, int32_t>, std::vector<double>> made;
  const std::lock_guard lock(mutex);
  std::vector<double>& levels = made[key];
  if (levels.empty()) levels = make();
  return levels;
}

}  // namespace

std::vector<double> gauss_levels(int32_t bits) {
  return once({0, bits, 0}, [&] { return make_gauss(bits); });
}
std::vector<double> beta_levels(int32_t bits, int32_t width) {
  return once({1, bits, width}, [&] { return make_beta(bits, width); });
}
std::vector<double> angle_levels(int32_t level, int32_t bits) {
  return once({2, level, bits}, [&] { return make_angles(level, bits); });
}

}  // namespace kvreplay

// Fronts of tails: least times after each state outside of skips, backward from the result.
//
// A tail is three times: how long before the end robot, server and uplink must be free at the latest. A state that none
// of its tails ends before the target leads nowhere. Only tails are kept that some state of the plain search, which
// has gone forward before, ends in time with; so both searches bound each other.
#pragma once

#include "clocks.h"

namespace {

// A tail is a point whose clocks run backwards; `work` is of no meaning.
using Tail = Point;
using Fronts = std::vector<Front>;  // [a][b]

class Tails {
 public:
  // `held`: what the plain search held of each step's result.
  Tails(const Search& search, const std::vector<Fronts>& held, double result_down)
      : f_(search), held_(held), after_(search.count), ready_(search.count) {
    const Step& last = f_.steps[f_.count - 1];
    const int n = last.length + 1;
    after_.back().resize(n * n);
    for (int a = 0; a < n; a++)
      for (int b = 0; b < n; b++) {
        const double sent = a >= last.length ? 0 : (last.length - a) * result_down + f_.message + f_.latency;
        after_.back()[a * n + b].push_back({0, sent, kLongAgo, 0});
      }
    for (int w = f_.count - 1; w >= 0; w--) {
      compute(w);
      if (w) receive(w);
    }
  }

  // Returns true if no tail behind step w ends this state of a and b rows before the target.
  bool late_after(int w, int a, int b, const Point& p) const {
    return late(after_[w][a * (f_.steps[w].length + 1) + b], p);
  }
  // The same where step w begins with just A and B rows of its argument.
  bool late_before(int w, int A, int B, const Point& p) const {
    return late(ready_[w][A * (f_.steps[w].argument + 1) + B], p);
  }

 private:
  static constexpr double kLongAgo = -1e30;

  static bool in_time(const Tail& t, const Point& p, double target) {
    return t.robot + p.robot < target && t.server + p.server < target && t.up + p.up < target;
  }

  bool late(Front& tails, const Point& p) const {
    for (size_t k = 0; k < tails.size(); k++)
      if (in_time(tails[k], p, f_.target)) {
        if (k) std::swap(tails[k], tails[k / 2]);
        return false;
      }
    return true;
  }

  // Tails where step w begins, from those behind it.
  void compute(int w) {
    const Step& s = f_.steps[w];
    const int n = s.length + 1, m = s.argument + 1;
    ready_[w].resize(m * m);
    for (int x = 0; x < n; x++)
      for (int y = 0; y < n; y++) {
        if (!s.allowed(x, y)) continue;
        Front& front = ready_[w][s.least[x] * m + s.least[y]];
        for (const Tail& t : after_[w][x * n + y]) front.push_back({t.robot + s.robot[x], t.server + s.server[y], t.up, 0});
      }
    for (Front& front : ready_[w]) f_.thin(front);
  }

  // Tails behind step w - 1, from those where step w begins: what is lacking is sent.
  void receive(int w) {
    const Step& s = f_.steps[w];
    const int m = s.argument + 1;
    Fronts same(m * m), robot(m * m), server(m * m);
    std::vector<Point> least = earliest(w - 1);
    auto join = [this](Front& to, const Front& from) {
      to.insert(to.end(), from.begin(), from.end());
      f_.thin(to);
    };
    after_[w - 1].resize(m * m);
    for (int a = 0; a < m; a++)
      for (int b = 0; b < m; b++) {
        const Point& p = least[a * m + b];
        if (p.robot > kBeyond) continue;
        Front& both = same[a * m + b];
        exchange(s, w, a, b, a, b, p, both);
        if (a) join(both, same[(a - 1) * m + b]);
        if (b) join(both, same[a * m + b - 1]);
        Front& more = robot[a * m + b];
        for (int B = b + 1; B < m; B++) exchange(s, w, a, b, a, B, p, more);
        if (a) join(more, robot[(a - 1) * m + b]);
        Front& further = server[a * m + b];
        for (int A = a + 1; A < m; A++) exchange(s, w, a, b, A, b, p, further);
        if (b) join(further, server[a * m + b - 1]);
        const Front& front = held_[w - 1][a * m + b];
        if (front.empty()) continue;
        Front all;
        const Point own = earliest_of(front);
        for (int A = a + 1; A < m; A++)
          for (int B = b + 1; B < m; B++) exchange(s, w, a, b, A, B, own, all);
        for (const Front* one : {&both, &more, &further}) all.insert(all.end(), one->begin(), one->end());
        f_.thin(all);
        Front& kept = after_[w - 1][a * m + b];
        for (const Tail& t : all)
          for (const Point& q : front)
            if (in_time(t, q, f_.target)) {
              kept.push_back(t);
              break;
            }
      }
  }

  static Point earliest_of(const Front& front) {
    Point least = {kNever, kNever, kNever, 0};
    for (const Point& p : front) {
      least.robot = std::min(least.robot, p.robot);
      least.server = std::min(least.server, p.server);
      least.up = std::min(least.up, p.up);
    }
    return least;
  }

  // [a][b]: nothing that has at least so many rows of step w's result has earlier clocks.
  std::vector<Point> earliest(int w) const {
    const int n = f_.steps[w].length + 1;
    std::vector<Point> least(n * n);
    auto lower = [](Point& p, const Point& q) {
      p.robot = std::min(p.robot, q.robot);
      p.server = std::min(p.server, q.server);
      p.up = std::min(p.up, q.up);
    };
    for (int a = n - 1; a >= 0; a--)
      for (int b = n - 1; b >= 0; b--) {
        Point& p = least[a * n + b] = earliest_of(held_[w][a * n + b]);
        if (a < n - 1) lower(p, least[(a + 1) * n + b]);
        if (b < n - 1) lower(p, least[a * n + b + 1]);
      }
    return least;
  }

  // Tails of a state with a and b rows that A and B are wanted of, to `out`; clocks are nowhere before `p`. What is sent
  // beyond what is lacking is taken in stretches: as long on the wire as their least, saving as much as their most.
  void exchange(const Step& s, int w, int a, int b, int A, int B, const Point& p, Front& out) const {
    const Front& tails = ready_[w][A * (s.argument + 1) + B];
    const int robot_lacks = std::max(0, A - a), server_lacks = std::max(0, B - b);
    for (const Tail& t : tails) {
      if (!in_time(t, p, f_.target)) continue;
      for (int i = robot_lacks, more = 1; i <= A; i += more, more = std::max(1, i - robot_lacks)) {
        const double down = i ? t.robot + i * s.down + f_.message + f_.latency : 0;
        if (p.server + down >= f_.target) break;
        const double robot = t.robot + s.rest_robot[std::max(0, A - i - more + 1)];
        if (p.robot + robot >= f_.target) continue;
        for (int j = server_lacks, extra = 1; j <= B; j += extra, extra = std::max(1, j - server_lacks)) {
          const double up = j ? std::max(t.up, t.server + f_.latency) + j * s.up + s.message : t.up;
          const double first = j ? std::max(up, t.server + f_.latency + j * s.up_alone) : 0;
          if (p.robot + first >= f_.target || p.up + up >= f_.target) break;
          const double server = t.server + s.rest_server[std::max(0, B - j - extra + 1)];
          if (p.server + server >= f_.target) continue;
          for (int k = 0; k < std::max(1, s.sides); k++) {
            const double mine = s.sides ? s.side_robot[k] : 0, theirs = s.sides ? s.side_server[k] : 0;
            const Tail found = {std::max(robot + mine, first), std::max(server + theirs, down), up, 0};
            if (in_time(found, p, f_.target)) out.push_back(found);
          }
          if (out.size() > kLong) f_.thin(out);
        }
      }
    }
  }

  static constexpr size_t kLong = 400;
  const Search& f_;
  const std::vector<Fronts>& held_;
  mutable std::vector<Fronts> after_;  // step -> [x][y] of its result
  mutable std::vector<Fronts> ready_;  // step -> [A][B] of its argument
};

}  // namespace
